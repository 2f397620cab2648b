"""A session: one conversation with a model, its tokens and their cache; it can be continued, cut, forked and closed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from cacheir.errors import BackendError, RequestError, UsageError
from cacheir.quick_dataclass import dataclass
from cacheir.runtime.answer import Answer
from cacheir.runtime.answer_clock import AnswerClock
from cacheir.runtime.host_sampling import HostSampler
from cacheir.runtime.pages import held
from cacheir.runtime.request import admit, check_ids, check_length
from cacheir.runtime.runner import Outcome, Work
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.stats import CacheStats, GenerationStats, cache_stats

if TYPE_CHECKING:
    import numpy as np

    from cacheir.runtime.open_model import OpenModel
    from cacheir.runtime.sequence import Sequence as TokenSequence


@dataclass(frozen=True)
class Piece:
    """A part of an answer: text that is ready, ids (whose last character may still be open), and why it ended."""

    text: str
    ids: tuple[int, ...]
    finish_reason: str | None = None


class Session:
    """The tokens of one conversation. Open one with ``Runtime.session()``; close it, or use it in a ``with`` block.

    Tokens are appended without being computed; ``prefill``, ``logits`` and ``generate`` compute what is missing, in
    chunks. ``fork`` may be called at any point, between two pieces of an answer too: both sessions share pages until
    one of them writes. A session is used by one thread at a time.
    """

    def __init__(self, model: OpenModel, sequence: TokenSequence) -> None:
        self._model = model
        self._sequence = sequence
        self._stats: GenerationStats | None = None
        self._answering = False
        self._closed = False

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens, those of answers included."""
        return tuple(self._sequence.ids)

    @property
    def cached_tokens(self) -> int:
        """How many of them have keys and values."""
        return self._sequence.cached

    @property
    def stats(self) -> GenerationStats | None:
        """The cost of the last answer that ended, None before the first."""
        return self._stats

    @property
    def cache(self) -> CacheStats:
        """What the session's keys and values take now."""
        groups, layers, kv = self._model.kv_groups, self._model.program.group_layers, self._model.runner.kv
        tables = self._sequence.tables
        pages = [held(table) for table in tables]
        shared = [sum(pool.holders(page) > 1 for page in table) for pool, table in zip(kv.pools, pages)]
        return cache_stats(
            groups, layers, [len(table) for table in pages], shared, self._sequence.cached, kv.page_tokens
        )

    def append(self, ids: Sequence[int]) -> None:
        """Adds tokens; ``RequestError`` for an id the model does not have, ``RequestTooLong`` where they do not fit."""
        self._check_idle()
        checked = check_ids(ids, self._model.limits.vocab_size)
        check_length(len(self._sequence.ids) + len(checked), self._model.limits.max_seq)
        self._sequence.ids += checked

    def append_text(self, text: str) -> None:
        """Adds a text, with the token that begins a text where the model wants one and the session is empty."""
        self.append(self._model.encoder.text_ids(text, at_start=not self._sequence.ids))

    def continue_with(self, ids: Sequence[int]) -> int:
        """Makes ``ids`` the session's tokens; gives the number of leading ones that were there and stay computed."""
        self._check_idle()
        checked = check_ids(ids, self._model.limits.vocab_size)
        check_length(len(checked), self._model.limits.max_seq)
        same = 0
        for old, new in zip(self._sequence.ids, checked):
            if old != new:
                break
            same += 1
        self._model.runner.release(self._sequence, same)
        self._sequence.ids += checked[same:]
        return self._sequence.cached

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position ``length`` on, and their pages."""
        self._check_idle()
        self._check_position(length)
        self._model.runner.release(self._sequence, length)

    def prefill(self) -> None:
        """Computes keys and values of all tokens that have none."""
        self._check_idle()
        while self._sequence.pending:
            self._step("nothing")

    def logits(self) -> np.ndarray:
        """The logits after the last token, f32 [V]."""
        self._check_idle()
        if not self._sequence.ids:
            raise RequestError("the session has no tokens, so nothing has logits")
        self._leave_one_pending()
        while self._sequence.pending:
            outcome = self._step("logits")
        if outcome.logits is None:
            raise BackendError("the executor gave no logits for a row that wants them")
        return outcome.logits

    def generate(self, sampling: SamplingParams | None = None) -> Generator[Piece, None, None]:
        """Continues the tokens. The request is checked at once; the work is done as the pieces are taken.

        There is a piece for every step, empty for a chunk of the prompt; the last one has a ``finish_reason``. An
        iterator that is given up early leaves the session with the tokens that it had delivered.
        """
        self._check_idle()
        admitted = admit(len(self._sequence.ids), sampling or SamplingParams(), self._model.limits)
        return self._answer(admitted, self._model.make_sampler(admitted))

    def fork(self, at: int | None = None) -> Session:
        """A second session with the first ``at`` tokens (all by default) and the pages that hold them."""
        self._check_open()
        length = len(self._sequence.ids) if at is None else at
        self._check_position(length)
        return Session(self._model, self._model.runner.fork(self._sequence, length))

    def save(self, path: str | Path) -> None:
        """Writes tokens, keys and values to ``path``, whole or not at all; ``Runtime.restore`` reads them.

        The file holds the conversation: treat it as such. ``UsageError`` where the pages' format has scales of its own.
        """
        from cacheir.runtime.session_file import save_session

        self._check_idle()
        save_session(self._model, self._sequence, Path(path))

    def close(self) -> None:
        """Gives all pages back. Closing twice is allowed; using a closed session is a ``UsageError``."""
        if not self._closed:
            self._closed = True
            self._model.runner.release(self._sequence)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, sampling: SamplingParams, sampler: HostSampler | None) -> Generator[Piece, None, None]:
        self._check_idle()
        sequence, model = self._sequence, self._model
        # The session may have grown since the request was checked.
        sampling = admit(len(sequence.ids), sampling, model.limits)
        self._leave_one_pending()
        clock = AnswerClock(
            prompt_tokens=len(sequence.ids),
            cached_tokens=sequence.cached,
            most_ahead=model.runner.most_ahead,
            step_seconds=model.runner.step_seconds,
            ahead_seconds=model.runner.ahead_seconds,
        )
        answer = Answer(model.tokenizer, sampling, at_start=model.encoder.at_start(sequence.ids))
        self._answering = True
        try:
            while True:
                self._check_open()
                began, known = len(sequence.ids), len(answer.ids)
                outcome = self._step(
                    "token",
                    sampling=sampling,
                    draw=answer.sampled,
                    ahead=clock.steps_ahead(answer.remaining),
                    then=clock.steps_behind(answer.remaining),
                    sampler=sampler,
                )
                text, used = answer.push_all(outcome.tokens)
                clock.note(outcome.seconds, sampled=len(outcome.tokens), used=used)
                ids = tuple(answer.ids[known:])
                if answer.finish_reason is not None:
                    model.runner.step_seconds = clock.step_seconds
                    # The ending token, and all that was computed beyond it, is no part of the conversation.
                    model.runner.release(sequence, began + len(ids))
                    self._stats = clock.stats(answer, sampling, self.cache, model.runner.refused_ahead)
                    model.on_done(self._stats)
                    yield Piece(text, ids, answer.finish_reason)
                    return
                # A chunk of the prompt gives an empty piece: between any two steps a caller may give up.
                yield Piece(text, ids)
                if outcome.error is not None:
                    raise BackendError(outcome.error)
        finally:
            self._answering = False
            if answer.finish_reason is None:  # given up, or an error
                model.runner.give_back_surplus(sequence)
                model.on_done(clock.stats(answer, sampling, self.cache, model.runner.refused_ahead))

    def _step(
        self,
        want: str,
        *,
        sampling: SamplingParams | None = None,
        draw: int = 0,
        ahead: int = 1,
        then: int = 0,
        sampler: HostSampler | None = None,
    ) -> Outcome:
        """One step of this sequence alone. An error that cost the whole step is raised; see ``Outcome`` for others."""
        work = Work(
            sequence=self._sequence,
            want=want,
            sampling=sampling,
            draw=draw,
            ahead=ahead,
            then=then,
            sampler=sampler,
        )
        (outcome,) = self._model.runner.step((work,))
        if outcome.error is not None and not outcome.tokens:
            raise BackendError(outcome.error)
        return outcome

    def _leave_one_pending(self) -> None:
        """An output needs a token to come out of: where all are computed, the last one is computed again."""
        self._sequence.cached = min(self._sequence.cached, len(self._sequence.ids) - 1)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the session is closed")

    def _check_idle(self) -> None:
        self._check_open()
        if self._answering:
            raise UsageError(
                "the session is in the middle of an answer",
                hint="take the answer's last piece, or close its iterator, before the session is used again",
            )

    def _check_position(self, length: int) -> None:
        if not 0 <= length <= len(self._sequence.ids):
            raise UsageError(f"position {length} is not in the session, which has {len(self._sequence.ids)} tokens")
