"""Whether the native backend can run here: it needs its compiled extension and a CPU that one of its builds fits."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

EXTENSION = "cacheir_native._cacheir_native"


def why_unavailable() -> str | None:
    """None where the backend can run, else the reason in words. Loads the extension, which loads nothing else."""
    if find_spec(EXTENSION) is None:
        return f"the compiled extension {EXTENSION} is not built: cacheir-native was installed without compiled code"
    try:
        import_module(EXTENSION).isa()
    except (ImportError, ValueError, RuntimeError) as error:
        return f"{EXTENSION} cannot be used: {error}"
    return None


def instruction_set() -> str:
    """The instruction set whose kernels run here, "" where none can."""
    if why_unavailable() is not None:
        return ""
    name: str = import_module(EXTENSION).isa()
    return name
