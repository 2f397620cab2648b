"""CacheIR: an inspectable compiler and runtime for decoder-only transformers.

``compile_model`` and ``Runtime`` are imported when they are first used, so that ``import cacheir`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacheir.artifact.card import CompileOptions
    from cacheir.compile import compile_model
    from cacheir.plugins.markers import hookimpl
    from cacheir.runtime.run_module import run_module
    from cacheir.runtime.runtime import Runtime

__version__ = "0.1.0"

__all__ = ["CompileOptions", "Runtime", "__version__", "compile_model", "hookimpl", "run_module"]

_PLACES = {
    "CompileOptions": "cacheir.artifact.card:CompileOptions",
    "compile_model": "cacheir.compile:compile_model",
    "Runtime": "cacheir.runtime.runtime:Runtime",
    "run_module": "cacheir.runtime.run_module:run_module",
    "hookimpl": "cacheir.plugins.markers:hookimpl",
}


def __getattr__(name: str) -> Any:
    """Import what is named on first use (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module 'cacheir' has no attribute {name!r}")
    from cacheir.plugins.ref import import_target

    value = globals()[name] = import_target(_PLACES[name])
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
