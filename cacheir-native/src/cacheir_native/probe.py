"""Whether the native backend can run here: it needs the compiled extension and an executor around it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from cacheir.errors import BackendUnavailable

if TYPE_CHECKING:
    from cacheir.runtime.executor import ExecutorOptions

EXTENSION = "cacheir_native._cacheir_native"


def why_unavailable() -> str | None:
    """Return the reason why the backend cannot run here, in words. Looks for the extension without loading it."""
    if find_spec(EXTENSION) is None:
        return f"the compiled extension {EXTENSION} is not built: cacheir-native was installed without compiled code"
    return f"{EXTENSION} is there, but this version of cacheir-native has no executor that could use it"


def refuse_to_open(options: ExecutorOptions) -> NoReturn:
    """Raise BackendUnavailable with the probe's reason, for a caller who did not ask the probe first."""
    raise BackendUnavailable(
        f"backend 'native' cannot run: {why_unavailable()}", hint="use --backend cpu, which runs on NumPy"
    )
