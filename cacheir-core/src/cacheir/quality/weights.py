"""What quantising did to the weights themselves: errors, and elements that became 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cacheir.artifact.artifact import Artifact
from cacheir.ir.types import QuantType
from cacheir.quality.pairing import by_keys, dense

# More weights of a tensor that became 0 than this are worth a word.
ZEROED_LIMIT = 0.25


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """A weight that differs: its format in the other model, the root mean square of the difference beside that of the
    weight, and the fraction of elements that were not 0 and became 0.
    """

    keys: tuple[str, ...]
    format: str
    error: float
    zeroed: float


def weight_changes(baseline: Artifact, other: Artifact) -> Iterator[WeightChange]:
    """The weights of one shape that both models have and that differ."""
    import numpy as np

    store, others = baseline.open_weights(), other.open_weights()
    ours, theirs = by_keys(baseline.program), by_keys(other.program)
    for keys in sorted(set(ours) & set(theirs)):
        type_ = other.program.weights[theirs[keys]].type
        wanted, found = dense(store.get(ours[keys])), dense(others.get(theirs[keys]))
        if wanted.shape != found.shape or np.array_equal(wanted, found):
            continue
        size = float(np.square(wanted, dtype=np.float64).mean()) or 1.0
        zeroed = int(np.count_nonzero((wanted != 0) & (found == 0))) / max(1, int(np.count_nonzero(wanted)))
        yield WeightChange(
            keys=keys,
            format=type_.format if isinstance(type_, QuantType) else getattr(type_, "dtype", ""),
            error=(float(np.square(found - wanted, dtype=np.float64).mean()) / size) ** 0.5,
            zeroed=zeroed,
        )
    store.close()
    others.close()
