"""What has come out of one request so far: its tokens, its text, and why it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cacheir.runtime.detokenize import Detokenizer
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.stop_strings import NO_STOPS, StopStrings
from cacheir.runtime.tokenizer import Tokenizer


class Answer:
    """Takes sampled tokens one by one and gives the text that may be delivered.

    ``sampling`` is as ``request.admit`` returns it. A token that ends the answer is counted in ``sampled`` and is not
    in ``ids``, nor is its text delivered; the tokens that spell a stop string are in ``ids``, since the model has seen
    them.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, *, at_start: bool = False) -> None:
        self.ids: list[int] = []
        self.sampled = 0
        self.finish_reason: str | None = None
        self._sampling = sampling
        self._stop_ids = frozenset(sampling.stop_ids)
        self._detokenizer = Detokenizer(tokenizer, at_start=at_start)
        self._stops = StopStrings(sampling.stop) if sampling.stop else NO_STOPS
        self._untold: deque[int] = deque()

    @property
    def remaining(self) -> int:
        """How many more tokens may be sampled."""
        return (self._sampling.max_tokens or 0) - self.sampled

    def push(self, token: int) -> str:
        """The text that ``token`` sets free; the last token's holds all that was held back."""
        self.sampled += 1
        if token in self._stop_ids:
            return self._end("stop")
        self.ids.append(token)
        text = self._stops.push(self._detokenizer.push((token,)))
        if self._stops.stopped:
            self.finish_reason = "stop"
        elif self.remaining <= 0:
            text += self._end("length")
        return text

    def take(self, token: int) -> None:
        """Counts ``token`` and leaves its text to ``text``. For answers without stop strings: ids alone end them."""
        self.sampled += 1
        if token in self._stop_ids:
            self.finish_reason = "stop"
            return
        self.ids.append(token)
        self._untold.append(token)
        if self.remaining <= 0:
            self.finish_reason = "length"

    def text(self, *, ended: bool) -> str:
        """The text of the next token that ``take`` counted; with ``ended`` all that was held back besides."""
        text = self._detokenizer.push((self._untold.popleft(),)) if self._untold else ""
        return text + self._detokenizer.finish() if ended else text

    def push_all(self, tokens: Sequence[int]) -> tuple[str, int]:
        """The text of ``tokens`` up to the one that ends the answer, and how many of them were used."""
        if not self._sampling.stop:
            return self._push_plain(tokens[: max(1, self.remaining)])
        text, used = "", 0
        for token in tokens:
            text += self.push(token)
            used += 1
            if self.finish_reason:
                break
        return text, used

    def _push_plain(self, tokens: Sequence[int]) -> tuple[str, int]:
        """As ``push_all`` without stop strings, where no text is looked through: all tokens in one go."""
        used, kept = len(tokens), tokens
        if not self._stop_ids.isdisjoint(tokens):
            place = next(place for place, token in enumerate(tokens) if token in self._stop_ids)
            used, kept = place + 1, tokens[:place]
            self.finish_reason = "stop"
        self.ids.extend(kept)
        self.sampled += used
        text = self._detokenizer.push(kept)
        if self.finish_reason is None and used and self.remaining <= 0:
            self.finish_reason = "length"
        return (text if self.finish_reason is None else text + self._detokenizer.finish()), used

    def _end(self, reason: str) -> str:
        """Ends the answer; what was held back is delivered, unless it completes a stop string after all."""
        text = self._stops.push(self._detokenizer.finish())
        self.finish_reason = "stop" if self._stops.stopped else reason
        return text + self._stops.finish()
