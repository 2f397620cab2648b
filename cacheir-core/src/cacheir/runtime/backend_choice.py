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
    """``refusals`` maps the backends that were asked first to what their probes said, the chosen one where it cannot
    work here."""

    name: str
    reason: str
    refusals: dict[str, str]

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"

    @property
    def refusal(self) -> str:
        """Why the backend cannot work here, "" where it can."""
        return self.refusals.get(self.name, "")


def choose_backend(installation: Installation, asked: str, *, demanded: str = "", to_run: bool = True) -> BackendChoice:
    """The backend for ``asked``, a name or ``auto``; ``demanded`` is what an artifact was compiled for.

    Where neither names one, ``CACHEIR_BACKEND`` may. Without ``to_run`` one that is named need not work here: a
    program is only looked at.

    Raises UsageError where the two differ, BackendUnavailable with the probes' reasons where none can work.
    """
    from cacheir.artifact.compatibility import find_backend

    if demanded:
        if asked not in ("auto", demanded):
            raise UsageError(
                f"the artifact was compiled for the backend {demanded}, not {asked}",
                hint=f"compile the model again with --target {asked}",
            )
        return _named(find_backend(installation, demanded), "the artifact was compiled for it", to_run)
    if asked != "auto":
        return _named(find_backend(installation, asked), "it was asked for", to_run)
    usual = settings.name("CACHEIR_BACKEND")
    if usual != "auto":
        return _named(find_backend(installation, usual), "CACHEIR_BACKEND names it", to_run)
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


def _named(backend: BackendSpec, reason: str, to_run: bool) -> BackendChoice:
    refusal = probe(backend)
    if refusal is not None and to_run:
        raise BackendUnavailable(
            f"the backend {backend.name} cannot work here: {refusal}",
            hint="cacheir plugins doctor says more; --backend auto takes what can work",
        )
    refusals = {} if refusal is None else {backend.name: refusal}
    return BackendChoice(name=backend.name, reason=reason, refusals=refusals)
