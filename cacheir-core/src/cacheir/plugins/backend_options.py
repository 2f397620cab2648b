"""A backend's own options (``ExecutorOptions.extra``): checked against the record that the backend declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cacheir.errors import UsageError
from cacheir.plugins.ref import resolve

if TYPE_CHECKING:
    from cacheir.plugins.specs import BackendSpec


def check_backend_options(
    backend: BackendSpec, given: Mapping[str, Any], *, backends: Iterable[BackendSpec] = ()
) -> None:
    """Raise UsageError for a name that ``BackendSpec.options`` does not have, or a value that it refuses.

    The hint names those of ``backends`` that have the option.
    """
    if not given:
        return
    names = option_names(backend)
    unknown = sorted(set(given) - set(names))
    if unknown:
        owners = [other.name for other in backends if unknown[0] in option_names(other)]
        hint = f"it has {', '.join(names)}" if names else "it has no options of its own; choose another --backend"
        if owners:
            hint = f"leave it out, or choose the backend that has it: {', '.join(owners)}"
        raise UsageError(f"backend {backend.name!r} has no option {unknown[0]!r}", hint=hint)
    assert backend.options is not None  # it has names
    resolve(backend.options)(**given)


def option_names(backend: BackendSpec) -> tuple[str, ...]:
    """The names of the options that are the backend's own."""
    return () if backend.options is None else tuple(field.name for field in fields(resolve(backend.options)))
