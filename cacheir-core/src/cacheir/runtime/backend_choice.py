"""Which backend runs a model, and why: asked for, demanded by the artifact, or the first that can work here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheir import settings
from cacheir.errors import BackendUnavailable, UsageError
from cacheir.plugins.inventory import probe
from cacheir.quick_dataclass import dataclass

if TYPE_CHECKING:
    from cacheir.plugins.installation import Installation
    from cacheir.plugins.specs import BackendSpec

# The backend that runs every program and is no faster than it is clear: taken where no other can work.
LAST_RESORT = "cpu"


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """``refusals`` maps the backends that were asked first to what their probes said."""

    name: str
    reason: str
    refusals: dict[str, str]

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_backend(installation: Installation, asked: str, *, demanded: str = "") -> BackendChoice:
    """The backend for ``asked``, a name or ``auto``; ``demanded`` is what an artifact was compiled for.

    Where neither names one, ``CACHEIR_BACKEND`` may.

    Raises UsageError where the two differ, BackendUnavailable with the probes' reasons where none can work.
    """
    from cacheir.artifact.compatibility import find_backend

    if demanded:
        if asked not in ("auto", demanded):
            raise UsageError(
                f"the artifact was compiled for the backend {demanded}, not {asked}",
                hint=f"compile the model again with --target {asked}",
            )
        _check(find_backend(installation, demanded))
        return BackendChoice(name=demanded, reason="the artifact was compiled for it", refusals={})
    if asked != "auto":
        _check(find_backend(installation, asked))
        return BackendChoice(name=asked, reason="it was asked for", refusals={})
    usual = settings.name("CACHEIR_BACKEND")
    if usual != "auto":
        _check(find_backend(installation, usual))
        return BackendChoice(name=usual, reason="CACHEIR_BACKEND names it", refusals={})
    refusals: dict[str, str] = {}
    for name in sorted(installation.backends.names(), key=lambda name: (name == LAST_RESORT, name)):
        refusal = probe(find_backend(installation, name))
        if refusal is None:
            said = "; ".join(f"{other} cannot: {why}" for other, why in refusals.items())
            return BackendChoice(name=name, reason=said or "it is the first that can work here", refusals=refusals)
        refusals[name] = refusal
    listed = "; ".join(f"{name}: {why}" for name, why in refusals.items()) or "no installed plugin has one"
    raise BackendUnavailable(
        f"no backend can work here ({listed})", hint="cacheir-cpu runs wherever NumPy does; install it from this tree"
    )


def _check(backend: BackendSpec) -> None:
    refusal = probe(backend)
    if refusal is not None:
        raise BackendUnavailable(
            f"the backend {backend.name} cannot work here: {refusal}",
            hint="cacheir plugins doctor says more; --backend auto takes what can work",
        )
