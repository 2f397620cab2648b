"""The family that serves an architecture, among those that the installed plugins registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cacheir.errors import UnsupportedModelError
from cacheir.plugins import FamilySpec
from cacheir.plugins.installation import Installation, default

HUGGINGFACE = "huggingface"
GGUF = "gguf"


def find_family(source: str, architectures: Sequence[str], place: str, options: Mapping[str, Any]) -> FamilySpec:
    """The family of the first of ``architectures`` of ``source`` (``huggingface`` or ``gguf``) that one claims.

    ``options["installation"]`` says whose plugins are asked, the process's where it is absent. Raises
    UnsupportedModelError that names the architectures and those that are supported.
    """
    families = installation_of(options).families
    for architecture in architectures:
        family = families.find(f"{source}:{architecture}")
        if family is not None:
            return family
    known = sorted({name for spec in families for name in _architectures(spec, source)})
    if not architectures:
        raise UnsupportedModelError(f"{place} names no architecture; supported: {', '.join(known)}")
    listed = ", ".join(map(repr, architectures))
    what = f"architecture {listed} is" if len(architectures) == 1 else f"architectures {listed} are"
    raise UnsupportedModelError(
        f"{place}: {what} not supported; supported: {', '.join(known)}",
        hint="a plugin can add a family: see cacheir_register_families in docs/hooks.md",
    )


def installation_of(options: Mapping[str, Any]) -> Installation:
    """The installation that the importer was called for."""
    chosen = options.get("installation")
    return chosen if isinstance(chosen, Installation) else default()


def _architectures(spec: FamilySpec, source: str) -> tuple[str, ...]:
    return spec.architectures if source == HUGGINGFACE else spec.gguf_architectures
