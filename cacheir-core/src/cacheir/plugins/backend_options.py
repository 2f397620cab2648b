"""A backend's own options (``ExecutorOptions.extra``): checked against the record that the backend declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cacheir.errors import UsageError
from cacheir.plugins.ref import resolve

if TYPE_CHECKING:
    from cacheir.plugins.specs import BackendSpec


def check_backend_options(backend: BackendSpec, given: Mapping[str, Any]) -> None:
    """Raise UsageError for a name that ``BackendSpec.options`` does not have, or a value that it refuses."""
    if not given:
        return
    record = resolve(backend.options) if backend.options is not None else None
    names = [field.name for field in fields(record)] if record is not None else []
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise UsageError(
            f"backend {backend.name!r} has no option {unknown[0]!r}",
            hint=f"it has {', '.join(names)}" if names else "it has no options of its own; choose another --backend",
        )
    assert record is not None  # it has names
    record(**given)
