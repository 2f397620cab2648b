"""What a head that samples is asked for: draws whose answer no rounding moves, and how wrong another token is.

Each draw has one filter that leaves about half of the vocabulary, and of a few seeds the one whose winner stands
farthest from every other token that might win and from the filter's border.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacheir.bisection.probe import Probe
from cacheir.runtime.sampling import MAX_TEMPERATURE, MIN_TEMPERATURE, SamplingParams

if TYPE_CHECKING:
    import numpy as np

SEEDS = range(1, 25)
FILTERS = ("top_k", "top_p", "min_p")


@dataclass(frozen=True, eq=False, kw_only=True)
class Draw:
    """One token to sample. ``scores`` f64 [V] are logit + temperature * noise, which the largest wins.

    Only tokens whose logit (``logits`` f64 [V]) is at least ``border`` may win; ``winner`` is the one that does.
    """

    sampling: SamplingParams
    draw: int
    winner: int
    border: float
    logits: np.ndarray
    scores: np.ndarray

    def distance(self, token: int) -> float:
        """How far logits had to move for ``token`` to win: 0.0 for the winner, infinite for what is no token."""
        if token == self.winner:
            return 0.0
        if not 0 <= token < len(self.logits):
            return float("inf")
        behind = float(self.scores[self.winner] - self.scores[token])
        return max(behind, float(self.border - self.logits[token]))

    def inputs(self, position: int) -> dict[str, Any]:
        """One row of what ``head.sampled`` takes after its rows, by name; every token is allowed."""
        import numpy as np

        given = self.sampling
        return {
            "temperature": np.array([given.temperature], np.float32),
            "top_k": np.array([given.top_k], np.int32),
            "top_p": np.array([given.top_p], np.float32),
            "min_p": np.array([given.min_p], np.float32),
            "seed": np.array([given.seed], np.uint64),
            "position": np.array([position], np.int32),
            "draw": np.array([self.draw], np.int32),
            "mask": np.full((1, -(-len(self.logits) // 32)), 0xFFFFFFFF, np.uint32),
        }


def make_draws(probe: Probe, reference: np.ndarray) -> Mapping[tuple[int, int], Draw]:
    """(step, position) -> the draw after the last id of each step; ``reference`` f32 [ids, V] are the logits."""
    spread = float(reference.std()) or 1.0
    temperature = min(max(spread, MIN_TEMPERATURE), MAX_TEMPERATURE)
    return {
        (number, stop - 1): _farthest(
            reference[stop - 1], temperature, FILTERS[number % len(FILTERS)], stop - 1, number
        )
        for number, (_, _, stop) in enumerate(probe.steps())
    }


def _farthest(logits: np.ndarray, temperature: float, filter_: str, position: int, draw: int) -> Draw:
    """The draw by the seed with the widest margin, among those that the filter matters to where there is one."""
    import numpy as np

    from cacheir.reference.philox import words
    from cacheir.reference.sampling import gumbel, survivors

    wide = logits.astype(np.float64)
    half = max(1, len(logits) // 2)
    middle = float(np.sort(wide)[::-1][half - 1])
    least = min(1.0, float(np.exp((middle - wide.max()) / temperature)))
    setting: dict[str, Any] = {filter_: {"top_k": half, "top_p": 0.6, "min_p": least}[filter_]}
    kept = survivors((logits - logits.max()) / np.float32(temperature), **setting)
    border = float(wide[kept].min())
    everything = np.arange(len(logits))
    best: tuple[tuple[bool, float], Draw] | None = None
    for seed in SEEDS:
        scores = wide + temperature * gumbel(words(seed, position, draw, everything))
        winner = int(kept[scores[kept].argmax()])
        sampling = SamplingParams(temperature=temperature, seed=seed, **setting)
        found = Draw(sampling=sampling, draw=draw, winner=winner, border=border, logits=wide, scores=scores)
        others = np.maximum(scores[winner] - scores, border - wide)
        others[winner] = np.inf
        margin = min(float(wide[winner]) - border, float(others.min()))
        matters = int(scores.argmax()) != winner
        # A margin of half a temperature is as good as a wider one: then it counts that the filter is seen.
        rank = (matters and margin > temperature / 2, margin)
        if best is None or rank > best[0]:
            best = rank, found
    assert best is not None
    return best[1]
