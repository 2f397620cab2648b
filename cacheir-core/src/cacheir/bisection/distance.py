"""How far an answer is from the reference's, in units of the spread of the reference's logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cacheir.bisection.probe import Evidence, Where
from cacheir.errors import BackendError

if TYPE_CHECKING:
    import numpy as np

    from cacheir.bisection.draws import Draw

INFINITE = float("inf")


class Ruler:
    """Measures against the logits of the reference, f32 [ids, V].

    ``draws`` are those of the probe. Raises BackendError where the logits are not finite: then there is nothing to
    compare with.
    """

    def __init__(self, reference: np.ndarray, draws: Mapping[tuple[int, int], Draw]) -> None:
        import numpy as np

        if not np.isfinite(reference).all():
            raise BackendError(
                "the reference's own logits are not finite, so nothing can be compared with them",
                hint="the weights are damaged, or a value overflows f32: cacheir verify checks an artifact's weights",
            )
        self._reference = reference.astype(np.float64)
        self._spread = float(self._reference.std()) or 1.0
        self._draws = draws

    def distance(self, answer: Evidence) -> float:
        """The largest difference of a logit, over the reference's standard deviation; infinite for no or NaN answer.

        A greedy token counts with how far the reference's logit of it lies below its best one, a sampled one with how
        far the reference's logits had to move for it to win.
        """
        import numpy as np

        if answer.error or answer.logits is None or not np.isfinite(answer.logits).all():
            return INFINITE
        if answer.logits.shape != self._reference.shape:
            return INFINITE
        worst = float(np.abs(answer.logits - self._reference).max())
        for (_, position), token in answer.tokens.items():
            row = self._reference[position]
            worst = max(worst, float(row.max() - row[token]) if 0 <= token < len(row) else INFINITE)
        worst = max([worst, *(self._draws[place].distance(token) for place, token in answer.sampled.items())])
        return worst / self._spread


def first_unlike(before: Evidence, after: Evidence, tolerance: float) -> Where | None:
    """The first place, in the order of ``after``, whose value is another than in ``before``; None where none is."""
    return next((where for where in after.values if are_unlike(before, after, where, where, tolerance)), None)


def are_unlike(before: Evidence, after: Evidence, old_place: Where, new_place: Where, tolerance: float) -> bool:
    """Whether two values differ by more than ``tolerance`` standard deviations; no where one of them is not known."""
    import numpy as np

    old: Any = before.values.get(old_place)
    new: Any = after.values.get(new_place)
    if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype or not new.size:
        return False
    if old.dtype.kind != "f":
        return not np.array_equal(old, new)
    wide = old.astype(np.float64)
    spread = float(wide.std()) or float(np.abs(wide).max()) or 1.0
    return not np.abs(new - wide).max() / spread <= tolerance  # NaN is unlike everything
