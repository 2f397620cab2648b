"""The family that serves an architecture, among those that the installed plugins registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheir.errors import UnsupportedModelError
from cacheir.plugins import FamilySpec
from cacheir.plugins.installation import Installation, default

HUGGINGFACE = "huggingface"
GGUF = "gguf"


def find_family(source: str, architecture: str | None, place: str, options: Mapping[str, Any]) -> FamilySpec:
    """The family that claims ``architecture`` of ``source`` (``huggingface`` or ``gguf``).

    ``options["installation"]`` says whose plugins are asked, the process's where it is absent. Raises
    UnsupportedModelError that names the architecture and those that are supported.
    """
    families = installation_of(options).families
    family = families.find(f"{source}:{architecture}") if architecture else None
    if family is not None:
        return family
    known = sorted({name for spec in families for name in _architectures(spec, source)})
    if not architecture:
        raise UnsupportedModelError(f"{place} names no architecture; supported: {', '.join(known)}")
    raise UnsupportedModelError(
        f"{place}: architecture {architecture!r} is not supported; supported: {', '.join(known)}",
        hint="a plugin can add a family: see cacheir_register_families in docs/hooks.md",
    )


def installation_of(options: Mapping[str, Any]) -> Installation:
    """The installation that the importer was called for."""
    chosen = options.get("installation")
    return chosen if isinstance(chosen, Installation) else default()


def _architectures(spec: FamilySpec, source: str) -> tuple[str, ...]:
    return spec.architectures if source == HUGGINGFACE else spec.gguf_architectures
