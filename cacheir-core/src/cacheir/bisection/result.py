"""What a bisection found, as data and in sentences."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a variant: ``what`` is that variant in words, ``distance`` how far its answer was."""

    what: str
    distance: float
    is_wrong: bool
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The one thing with which the answer is wrong and without which it is right.

    ``kind`` is ``pass``, ``rewrite`` (one site of a pass), ``kernel``, or ``backend``: the executor or the memory plan,
    since it is wrong with every op run by its meaning. ``site`` is counted over the whole pipeline, 0 for none.
    ``layer`` is the first layer where values are other ones, None where that is in no layer; ``layers`` are those that
    the fault is in as far as is known: those that call the graph, or the one whose launch is at fault alone.
    """

    kind: str
    name: str
    plugin: str
    distance: float
    before: float  # the distance without it
    site: int = 0
    mode: str = ""
    graph: str = ""
    node: str = ""
    op: str = ""
    layer: int | None = None
    layers: tuple[int, ...] = ()
    made_by: str = ""  # for a kernel: the pass that made the node that it runs, "" where it stood there from the start
    error: str = ""
    diff: str = ""  # what the pass did to the graph, or the site alone


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """``distance`` is that of the whole program. ``passes``, ``sites`` and ``kernels`` are how many there are.

    ``trials`` are all runs in order; the reference's own is not among them.
    """

    model: str
    backend: str
    ids: tuple[int, ...]
    decoded: int
    tolerance: float
    distance: float
    passes: int
    sites: int
    kernels: int
    trials: tuple[Trial, ...]
    finding: Finding | None = None

    @property
    def runs(self) -> int:
        """How many variants were run."""
        return len(self.trials)

    def to_json(self) -> dict[str, Any]:
        """JSON values; what is infinite becomes null."""
        finding = None
        if self.finding is not None:
            finding = {key: _plain(value) for key, value in asdict(self.finding).items()}
        return {
            "format": 1,
            "model": self.model,
            "backend": self.backend,
            "ids": list(self.ids),
            "decoded": self.decoded,
            "tolerance": self.tolerance,
            "distance": _plain(self.distance),
            "is_right": self.finding is None,
            "finding": finding,
            "runs": self.runs,
            "passes": self.passes,
            "sites": self.sites,
            "kernels": self.kernels,
            "trials": [{key: _plain(value) for key, value in asdict(trial).items()} for trial in self.trials],
        }


def sentences(found: Bisection) -> str:
    """The result for people: a line that says what is wrong or that nothing is, then where and how that is known."""
    counted = f"{found.runs} run{'' if found.runs == 1 else 's'} of {_things(found)}"
    if found.finding is None:
        return (
            f"nothing is wrong: on {found.backend} the logits stay within {found.distance:.1e} of the reference, "
            f"allowed {found.tolerance:.0e}\n{counted}"
        )
    finding = found.finding
    lines = [_headline(finding)]
    if finding.error:
        lines.append(f"  it fails: {finding.error.splitlines()[0]}")
    if finding.graph:
        where = f"%{finding.node} ({finding.op}) of @{finding.graph}" if finding.op else f"@{finding.graph}"
        lines.append(f"  at {where}" + (f" in {finding.mode}" if finding.mode else ""))
    lines.append(f"  {_layers(finding)}")
    if finding.made_by:
        lines.append(f"  the node was made by {finding.made_by}")
    lines.append(
        f"  logits: {_far(finding.distance)} with it, {_far(finding.before)} without, allowed {found.tolerance:.0e}"
    )
    if finding.diff:
        lines += ["", *("  " + line for line in finding.diff.splitlines()), ""]
    lines.append(counted)
    return "\n".join(lines)


def trials_text(found: Bisection) -> str:
    """A line for each run, in order."""
    return "\n".join(
        f"{'wrong' if trial.is_wrong else 'right'}  {_far(trial.distance):>24}  {trial.what}" for trial in found.trials
    )


def _headline(finding: Finding) -> str:
    by = f"plugin {finding.plugin}" if finding.plugin else "no plugin"
    if finding.kind == "rewrite":
        return f"rewrite {finding.site} is wrong: pass {finding.name} ({by})"
    if finding.kind == "kernel":
        return f"kernel {finding.name} is wrong ({by})"
    if finding.kind == "pass":
        return f"pass {finding.name} is wrong ({by})"
    return (
        f"the backend {finding.name} is wrong ({by}) with every op run by its meaning: its executor or the memory plan"
    )


def _layers(finding: Finding) -> str:
    if not finding.layers:
        return "in no layer" if finding.layer is None else f"seen first in layer {finding.layer}"
    if finding.layers == (finding.layer,):
        return f"in layer {finding.layer} alone"
    named = f"{finding.layers[0]} to {finding.layers[-1]}" if _is_range(finding.layers) else str(list(finding.layers))
    first = "" if finding.layer is None else f", seen first in layer {finding.layer}"
    return f"in layers {named}{first}"


def _is_range(layers: tuple[int, ...]) -> bool:
    return layers == tuple(range(layers[0], layers[-1] + 1))


def _things(found: Bisection) -> str:
    return f"{found.passes} passes, {found.sites} rewrites and {found.kernels} kernels"


def _far(distance: float) -> str:
    return f"{distance:.1e} apart" if math.isfinite(distance) else "no finite answer"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value
