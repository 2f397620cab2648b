"""The times of one answer, and how many steps ahead an executor may be sent for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cacheir.runtime.answer import Answer
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.stats import CacheStats, GenerationStats

# One call of ``run_ahead`` may last this long: nobody can be served, and no answer cancelled, meanwhile.
AHEAD_SECONDS = 0.05
# Where the executor stops when it is asked to (``Capabilities.stops_ahead``), who comes is served within a few steps.
# Between two calls a device stands still, so that it pays to make few.
STOPPABLE_SECONDS = 0.15
MAX_AHEAD, MAX_STOPPABLE = 32, 128


class AnswerClock:
    """Starts when it is made. The first sampled token ends the prefill; each further one is a decode step.

    ``step_seconds`` is what a decode step took in an answer before this one, 0 where there was none; ``ahead_seconds``
    is how long a call of ``run_ahead`` may last, and ``most_ahead`` how many steps it may have.
    """

    def __init__(
        self,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        most_ahead: int = MAX_AHEAD,
        step_seconds: float = 0.0,
        ahead_seconds: float = AHEAD_SECONDS,
    ) -> None:
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._most_ahead = most_ahead
        self._ahead_seconds = ahead_seconds
        self._expected = step_seconds
        self._began = time.perf_counter()
        self._first = 0.0
        self._prefill_seconds = 0.0
        self._chunks = 0
        self._decode_seconds: list[float] = []
        self._discarded = 0

    def note(self, seconds: Sequence[float], *, sampled: int, used: int) -> None:
        """Adds a step: the time of each token, or of the whole step where it sampled none; ``used`` tokens counted."""
        if self._first == 0.0:
            self._prefill_seconds += sum(seconds)
            self._chunks += 1
            if sampled:
                self._first = time.perf_counter()
            return
        self._decode_seconds += seconds[:used]
        self._discarded += sampled - used

    def steps_ahead(self, remaining: int) -> int:
        """Decode steps that fit into one call by the slower of the last two steps (``step_seconds``).

        1 where no step was timed yet, and for the prompt's.
        """
        return max(1, self._fitting(remaining)) if self._first != 0.0 else 1

    def steps_behind(self, remaining: int) -> int:
        """Decode steps of the call that will follow the prompt's step; 0 where no step was timed yet, or none follow.

        ``remaining`` are the answer's tokens with the prompt's own, as in ``steps_ahead``.
        """
        return self._fitting(remaining - 1) if self._first == 0.0 else 0

    def _fitting(self, remaining: int) -> int:
        slowest = self.step_seconds
        return min(remaining, self._most_ahead, int(self._ahead_seconds / max(slowest, 1e-9))) if slowest else 0

    @property
    def step_seconds(self) -> float:
        """The slower of the last two decode steps; before the first what is expected of it."""
        return max(self._decode_seconds[-2:], default=self._expected)

    def stats(self, answer: Answer, sampling: SamplingParams, cache: CacheStats, refused: str) -> GenerationStats:
        """The record of the answer, which has ended; its ``finish_reason`` is "" where it was given up or failed."""
        now = time.perf_counter()
        return GenerationStats(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            sampled_tokens=answer.sampled,
            discarded_tokens=self._discarded,
            prefill_ms=1e3 * self._prefill_seconds,
            decode_ms=tuple(1e3 * seconds for seconds in self._decode_seconds),
            ttft_ms=1e3 * ((self._first or now) - self._began),
            total_ms=1e3 * (now - self._began),
            prefill_chunks=self._chunks,
            finish_reason=answer.finish_reason or "",
            seed=sampling.seed or 0,
            run_ahead_refused=refused,
            kv_cache=cache,
        )
