"""Runs steps: asks the pure planner, reserves pages, hands the step to the executor, applies what came back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cacheir.errors import UsageError
from cacheir.runtime.answer_clock import AHEAD_SECONDS, MAX_AHEAD, MAX_STOPPABLE, STOPPABLE_SECONDS
from cacheir.runtime.awaited_lock import AwaitedLock
from cacheir.runtime.executor import Executor, Row, RowOutput, Step
from cacheir.runtime.host_sampling import HostSampler, pick_on_host
from cacheir.runtime.kv_space import KVSpace
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.sequence import Sequence as TokenSequence
from cacheir.runtime.steps import Part, StepLimits, StepPlan, Wish, plan_step
from cacheir.runtime.vocabulary_mask import allows

if TYPE_CHECKING:
    import numpy as np

_GREEDY = SamplingParams()


@dataclass(frozen=True, kw_only=True)
class Work:
    """One sequence in need of a step. ``draw`` counts the tokens its request has sampled; ``ahead`` is ``Wish``'s.

    ``then`` is how many decode steps will be asked for behind a prompt's.
    """

    sequence: TokenSequence
    want: str
    sampling: SamplingParams | None = None
    draw: int = 0
    ahead: int = 1
    then: int = 0
    sampler: HostSampler | None = None  # a plugin's, in place of core's rule


@dataclass(kw_only=True)
class Outcome:
    """What a step did for one sequence.

    ``fed`` counts the tokens that got keys and values, ``tokens`` are the sampled ones, already at the end of the
    sequence, ``seconds`` the time of each; ``logits`` and ``hidden`` are f32 [V] and [H]. ``error`` is the executor's
    sentence where this sequence failed; it stands where it stood before the step.
    """

    fed: int = 0
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    logits: np.ndarray | None = None
    hidden: np.ndarray | None = None
    error: str | None = None
    mode: str = ""


class Runner:
    """The only place that changes sequences and pages of sessions.

    An executor is called by one thread at a time, the one that has ``lock``; the engine takes it for its steps. Whoever
    waits for it has it after ``AHEAD_SECONDS`` at most, where the executor stops ahead and runs may be longer.

    ``mask`` is the packed vocabulary mask u32 [ceil(V / 32)] that every token is held to, None for all ids. A greedy
    row goes without it, so that it stays on the greedy head and may run ahead: what wins among all ids wins among some,
    if it is one of them. Where it is not, the row's last token is fed once more, with the mask.

    ``rotation_switches`` are the lengths beyond which the model turns all keys otherwise (longrope): a sequence that
    passes one, either way, is computed anew from its first token.
    """

    def __init__(
        self,
        executor: Executor,
        kv: KVSpace,
        limits: StepLimits,
        *,
        mask: np.ndarray | None = None,
        rotation_switches: Sequence[int] = (),
    ) -> None:
        capabilities = executor.capabilities()
        self.kv = kv
        self.limits = limits
        self.refused_ahead = ""  # the executor's reason, once it would not run ahead
        self.mask = mask
        self.switches = tuple(rotation_switches)
        self.lock = AwaitedLock()
        self._executor = executor
        self._samples = "token" in capabilities.heads and (mask is None or capabilities.masks)
        self._may_run_ahead = capabilities.run_ahead and self._samples
        self._begins_ahead = capabilities.begins_ahead and not self.switches
        self.most_ahead = MAX_STOPPABLE if capabilities.stops_ahead else MAX_AHEAD
        self.ahead_seconds = STOPPABLE_SECONDS if capabilities.stops_ahead else AHEAD_SECONDS  # of one call
        self.step_seconds = 0.0  # of a decode step in the last answer of a session
        self.engine_step_seconds = 0.0  # of the last decode step of an engine, which the next engine expects
        self._closed = False

    def step(self, work: Sequence[Work]) -> list[Outcome]:
        """One step for ``work``, in its order; a sequence that had to wait has an empty outcome."""
        with self.lock:
            self.check_open()
            for item in work:
                self._turn(item.sequence)
                item.sequence.tables = self.kv.trim(item.sequence.tables, item.sequence.cached)
            plan = plan_step([self._wish(item) for item in work], self.limits)
            if plan.ahead > 1:
                plan = self._within_free_pages(work, plan)
            then = self._then(work, plan) if self._begins_ahead else 0
            beyond = then + plan.ahead - 1  # positions that are written without a word of the host
            rows = tuple(self._row(slot, part, work[part.index], beyond) for slot, part in enumerate(plan.parts))
            outcomes = [Outcome(mode=plan.mode) for _ in work]
            by_part = [outcomes[part.index] for part in plan.parts]
            step = Step(mode=plan.mode, rows=rows, then=then)
            if plan.ahead == 1 or not self._run_ahead(step, plan.ahead, by_part):
                self._run_once(step, [work[part.index] for part in plan.parts], by_part)
            self._choose_again(rows, by_part)
            for part, outcome in zip(plan.parts, by_part):
                _apply(work[part.index].sequence, part, outcome)
            return outcomes

    def check_open(self) -> None:
        """``UsageError`` once the runner is closed."""
        if self._closed:
            raise UsageError("the model is closed")

    def close(self) -> None:
        """Takes no more steps, and closes the executor once the step under way is done."""
        with self.lock:
            if not self._closed:
                self._closed = True
                self._executor.close()

    def release(self, sequence: TokenSequence, length: int = 0) -> None:
        """Cuts ``sequence`` to ``length`` tokens and gives the pages behind them back.

        Where its last token would see pages that were freed, nothing stays computed.
        """
        with self.lock:
            sequence.cut(length)
            if not self.kv.resumable(sequence.tables, max(0, sequence.cached - 1)):
                sequence.cached = 0
            sequence.tables = self.kv.cut(sequence.tables, sequence.cached)

    def give_back_surplus(self, sequence: TokenSequence) -> None:
        """Gives back the pages behind what is computed: those of steps that will not be asked for."""
        with self.lock:
            sequence.tables = self.kv.cut(sequence.tables, sequence.cached)

    def fork(self, sequence: TokenSequence, length: int) -> TokenSequence:
        """A second sequence with the first ``length`` tokens of ``sequence``, on the same pages until one writes."""
        with self.lock:
            cached = min(sequence.cached, length)
            if not self.kv.resumable(sequence.tables, max(0, cached - 1)):
                cached = 0
            tables = self.kv.fork(sequence.tables, cached)
            return TokenSequence(sequence.ids[:length], cached, tables, sequence.rotation)

    def _turn(self, sequence: TokenSequence) -> None:
        """Drop what was computed while the sequence was on the other side of a switch of the rotation."""
        rotation = sum(len(sequence.ids) > switch for switch in self.switches)
        if rotation != sequence.rotation:
            sequence.tables = self.kv.cut(sequence.tables, 0)
            sequence.cached, sequence.rotation = 0, rotation

    def _wish(self, item: Work) -> Wish:
        length = len(item.sequence.ids)
        ahead = item.ahead if self._may_run_ahead and not self._on_host(item) else 1
        ahead = min([ahead, *(switch - length + 1 for switch in self.switches if switch >= length)])
        return Wish(pending=item.sequence.pending, want=item.want, ahead=ahead)

    def _on_host(self, item: Work) -> bool:
        return not self._samples or (item.sampling is not None and item.sampling.on_host)

    def _within_free_pages(self, work: Sequence[Work], plan: StepPlan) -> StepPlan:
        """``plan`` with no more steps ahead than there are free pages for; every row may need some of its own."""
        ahead = plan.ahead
        while ahead > 1 and not self._fits(work, plan, ahead):
            ahead //= 2
        return StepPlan(mode=plan.mode, parts=plan.parts, ahead=ahead)

    def _fits(self, work: Sequence[Work], plan: StepPlan, ahead: int) -> bool:
        spans = [(work[part.index].sequence.tables, work[part.index].sequence.cached) for part in plan.parts]
        return self.kv.fits([(tables, start, start + ahead) for tables, start in spans])

    def _then(self, work: Sequence[Work], plan: StepPlan) -> int:
        """How many decode steps the executor may begin behind the last step of one prompt."""
        if plan.mode == "decode" or len(plan.parts) != 1:
            return 0
        (part,) = plan.parts
        item = work[part.index]
        if part.want != "token" or not self._may_run_ahead or self._on_host(item):
            return 0
        sequence = item.sequence
        stop = len(sequence.ids) + item.then
        return item.then if self.kv.fits([(sequence.tables, sequence.cached, stop)]) else 0

    def _row(self, slot: int, part: Part, item: Work, beyond: int) -> Row:
        """The row of ``part``, with pages for every position that it may write, ``beyond`` its own tokens too.

        Slots are numbered anew in every step: a row says everything about itself, so no state waits in a slot. The
        engine that plans one step while another runs will keep them.
        """
        sequence = item.sequence
        start = sequence.cached
        sequence.tables = self.kv.reserve(sequence.tables, start, start + part.tokens + beyond)
        want = "logits" if part.want == "token" and self._on_host(item) else part.want
        # Slots are numbered anew, so what a slot remembers is another request's.
        sampling = item.sampling or _GREEDY
        return Row(
            slot=slot,
            tokens=tuple(sequence.ids[start : start + part.tokens]),
            position=start,
            pages=sequence.tables,
            want=want,
            sampling=sampling,
            draw=item.draw,
            length=len(sequence.ids),
            mask=self.mask if want == "token" and not sampling.greedy else None,
        )

    def _run_once(self, step: Step, work: Sequence[Work], outcomes: Sequence[Outcome]) -> None:
        began = time.perf_counter()
        output = self._executor.wait(self._executor.submit(step))
        for row, item, result, outcome in zip(step.rows, work, output.rows, outcomes, strict=True):
            outcome.fed = len(row.tokens)
            self._take(row, item, result, outcome)
        seconds = time.perf_counter() - began
        for outcome in outcomes:
            outcome.seconds.append(seconds)

    def _run_ahead(self, step: Step, n: int, outcomes: Sequence[Outcome]) -> bool:
        """Whether the executor took ``step`` for ``n`` steps; its reason is kept where it did not."""
        last = began = time.perf_counter()
        going = len(step.rows)
        ends = [frozenset(row.sampling.stop_ids if row.sampling else ()) for row in step.rows]

        def sink(rows: Sequence[RowOutput]) -> bool:
            nonlocal last, going
            now = time.perf_counter()
            for result in rows:
                outcome = outcomes[result.slot]
                if self._is_barred(outcome):
                    continue  # what follows an id that may not be taken is of no use
                outcome.error = outcome.error or result.error
                if result.token is not None and not outcome.error:
                    outcome.tokens.append(result.token)
                    outcome.seconds.append(now - last)
                    outcome.fed += 1
                    going -= result.token in ends[result.slot]
            last = now
            return going <= 0 or (now - began > AHEAD_SECONDS and self.lock.awaited)

        try:
            self._executor.run_ahead(step, n, sink)
        except UsageError as refusal:
            if any(outcome.fed or outcome.error for outcome in outcomes):
                raise  # it had begun: no refusal, a fault
            self.refused_ahead = str(refusal)
            self._may_run_ahead = False
            return False
        return True

    def _is_barred(self, outcome: Outcome) -> bool:
        """Whether the last token is one that the mask forbids."""
        return self.mask is not None and bool(outcome.tokens) and not allows(self.mask, outcome.tokens[-1])

    def _choose_again(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
        """One more step for the rows that end in a barred token: what came before it is fed again, with the mask."""
        barred = [(row, outcome) for row, outcome in zip(rows, outcomes) if self._is_barred(outcome)]
        if not barred:
            return
        began = time.perf_counter()
        again = []
        for row, outcome in barred:
            fed = (*row.tokens, *outcome.tokens)[outcome.fed - 1]
            position, draw = row.position + outcome.fed - 1, row.draw + len(outcome.tokens) - 1
            again.append(
                replace(row, tokens=(fed,), position=position, want_at=(), draw=draw, length=0, mask=self.mask)
            )
        output = self._executor.wait(self._executor.submit(Step(mode="decode", rows=tuple(again))))
        seconds = time.perf_counter() - began
        for (_, outcome), result in zip(barred, output.rows, strict=True):
            outcome.tokens.pop()
            outcome.seconds[-1] += seconds
            outcome.error = result.error
            if result.token is not None:
                outcome.tokens.append(result.token)
            else:
                outcome.fed -= 1
                outcome.seconds.pop()

    def _take(self, row: Row, item: Work, result: RowOutput, outcome: Outcome) -> None:
        outcome.error = result.error
        if outcome.error is not None or row.want == "nothing":
            return
        outcome.hidden = None if result.hidden is None else result.hidden[-1]
        outcome.logits = None if result.logits is None else result.logits[-1]
        if item.want == "token" and result.token is not None:
            outcome.tokens.append(result.token)
        elif item.want == "token" and outcome.logits is not None:
            sampling, ids = item.sampling or _GREEDY, item.sequence.ids
            token, outcome.error = pick_on_host(
                outcome.logits, sampling, ids, item.draw, self.mask, sampler=item.sampler
            )
            outcome.tokens += [] if token is None else [token]
        elif item.want == "token":
            outcome.error = "the executor gave neither a token nor logits for a row that wants a token"


def _apply(sequence: TokenSequence, part: Part, outcome: Outcome) -> None:
    if outcome.error is not None and not outcome.tokens:
        outcome.fed = 0
    sequence.cached += outcome.fed
    sequence.ids.extend(outcome.tokens)
