"""Whether the NumPy backend can run here."""

from __future__ import annotations

from importlib import metadata

# What pyproject.toml asks for: an environment put together by hand may hold less.
LOWEST_NUMPY = (1, 26)


def probe() -> str | None:
    """None where NumPy is there and new enough, else the reason with the version found; does not import it."""
    try:
        version = metadata.version("numpy")
    except metadata.PackageNotFoundError:
        return "numpy is not installed"
    if tuple(int(part) for part in version.split(".")[:2]) < LOWEST_NUMPY:
        return f"numpy {version} is too old, {'.'.join(map(str, LOWEST_NUMPY))} or newer is needed"
    return None
