"""Checks of a backend under the engine: what requests do to each other must not show in any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.engine.prompt_lookup import Speculation
from cacheir.runtime.open_model import OpenModel, open_model
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.backend_bench import F32, BackendBench
from cacheir.testing.tiny_decoders import tiny_decoders
from cacheir.testing.tiny_programs import TinyProgram

_FAMILIES = 3  # prompts of one family begin alike


class RecordingStage:
    """Keeps the logits that each token of an answer was picked from, and changes nothing."""

    def __init__(self) -> None:
        self.logits: list[F32] = []

    def process(self, ids: Sequence[int], logits: F32) -> F32:
        """The logits as they came."""
        self.logits.append(logits.copy())
        return logits

    def accept(self, token: int) -> None:
        """Nothing follows from a token."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request of a trace. ``head`` is ``token``, ``logits`` (which are recorded) or ``hidden``."""

    ids: tuple[int, ...]
    count: int
    head: str = "token"
    temperature: float = 0.0
    priority: int = 0
    salt: str = ""
    start: int = 0
    cancel_after: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What comes when, and how the engine is set. ``extra`` requests come while those of the trace's spine run."""

    extra: tuple[Asked, ...]
    chunk_tokens: int
    max_tokens: int
    draft_tokens: int
    cancel_after: int


@dataclass(kw_only=True)
class Got:
    """What a request brought: its tokens, the logits that they were picked from, its hidden row."""

    tokens: list[int] = field(default_factory=list)
    logits: list[F32] = field(default_factory=list)
    hidden: Any = None
    outcome: str | None = None
    error: str | None = None


class BackendTraces(BackendBench):
    """The part of ``BackendTests`` that runs the engine on the backend.

    ``traces`` is how many each decoder gets, ``trace_steps`` how many steps all decoders' traces must take together;
    ``shrinks`` says whether a smaller one is sought where one fails.
    """

    traces: ClassVar[int] = 12
    trace_steps: ClassVar[int] = 0
    shrinks: ClassVar[bool] = True

    def test_the_engine_changes_nothing(self, decoder: str) -> None:
        """Interleaved, chunked, preempted, prefix-hit, shared and cancelled requests get what they get alone.

        Every trace has a change of heads, a preemption, a prefix hit and a cancelled request. A backend that states
        ``bit`` is held to the same bits of every logit and the same tokens; else logits may differ by ``tolerance``,
        and a token only where the logits of the best two are that close.
        """
        steps, wanted = self.check_traces(decoder, self.traces), -(-self.trace_steps // len(tiny_decoders()))
        assert steps >= wanted, f"{self.traces} traces took {steps} steps of the {wanted} that are this decoder's share"

    def check_traces(self, decoder: str, traces: int) -> int:
        """Runs ``traces`` traces, and gives the number of steps that they took."""
        tiny, steps = self.tiny(decoder), 0
        alone = _Alone(self, tiny)

        @settings(
            max_examples=traces,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            # Explaining a failure takes far longer than finding it.
            phases=(Phase.generate, Phase.shrink) if self.shrinks else (Phase.generate,),
        )
        @given(trace=_traces(tiny))
        def check(trace: Trace) -> None:
            nonlocal steps
            steps += self._run(tiny, trace, alone)

        try:
            check()
        finally:
            alone.model.executor.close()
        return steps

    def _run(self, tiny: TinyProgram, trace: Trace, alone: _Alone) -> int:
        pages_each = -(-tiny.program.max_seq // self.page_tokens)
        model = self._open(tiny, (pages_each + 1) * self.page_tokens)
        limits = EngineLimits(max_batch=4, max_rows=4, max_tokens=trace.max_tokens, chunk_tokens=trace.chunk_tokens)
        engine = Engine(model, limits, speculation=Speculation(draft_tokens=trace.draft_tokens))
        try:
            made = _Driver(engine, model).run(_spine(tiny, trace))
            counters, index = engine.state.counters, engine.state.index
            assert counters.preemptions["recompute"], "the trace has no preemption"
            assert index.counts.hit_tokens, "the trace has no prefix hit"
            assert any(got.outcome == "cancelled" for _, got in made), "the trace has no cancelled request"
            for asked, got in made:
                self._same_as_alone(model, asked, got, alone.of(asked))
            engine.close()
            for pool in model.runner.kv.pools:
                assert pool.free == pool.size, f"{pool.size - pool.free} pages leak"
            return sum(counters.steps.values())
        finally:
            model.executor.close()

    def _same_as_alone(self, model: OpenModel, asked: Asked, got: Got, alone: Got) -> None:
        assert got.error is None, f"a sound request ends in an error: {got.error}"
        if got.outcome != "cancelled":
            assert len(got.tokens) == len(alone.tokens), f"{asked} has {len(got.tokens)} tokens"
        if asked.head == "hidden":
            if got.hidden is not None:
                self._same(model, got.hidden, alone.hidden, f"the hidden row of {asked}")
            return
        for number, token in enumerate(got.tokens):
            expected = alone.logits[number]
            if got.logits:
                self._same(model, got.logits[number], expected, f"token {number} of {asked}")
            if token == alone.tokens[number]:
                continue
            assert model.executor.capabilities().determinism != "bit", (
                f"token {number} of {asked} is {token}, alone it is {alone.tokens[number]}"
            )
            if not asked.temperature:
                apart = float(expected.max() - expected[token])
                assert apart <= 2 * self.tolerance * float(np.abs(expected).max()), (
                    f"greedy token {number} of {asked} is {token}, whose logit is {apart:.1e} below the largest"
                )
            return  # what follows another token is another answer

    def _same(self, model: OpenModel, made: F32, expected: F32, where: str) -> None:
        if model.executor.capabilities().determinism == "bit":
            equal = made.tobytes() == expected.tobytes()
            assert equal, f"{where}: the engine changes bits of logits, and the backend states determinism 'bit'"
        else:
            self.compare(made, expected, where)

    def _open(self, tiny: TinyProgram, kv_tokens: int) -> OpenModel:
        executor = tiny.executor(page_tokens=self.page_tokens, **self.executor_options)
        return open_model(tiny.program, executor, page_tokens=self.page_tokens, kv_tokens=kv_tokens)


class _Alone:
    """What requests get when they are the only ones, with their logits: one executor, no reuse, no neighbour."""

    def __init__(self, bench: BackendTraces, tiny: TinyProgram) -> None:
        self.model = bench._open(tiny, 2 * tiny.program.max_seq)
        self._known: dict[tuple[Any, ...], Got] = {}

    def of(self, asked: Asked) -> Got:
        key = (asked.ids, asked.count, asked.temperature, asked.head == "hidden")
        if key not in self._known:
            head = "hidden" if asked.head == "hidden" else "logits"
            plain = replace(asked, head=head, start=0, cancel_after=None)
            engine = Engine(self.model)
            ((_, got),) = _Driver(engine, self.model, reuse=False).run(([plain],))
            assert got.error is None, f"a sound request alone ends in an error: {got.error}"
            engine.close()
            self._known[key] = got
        return self._known[key]


class _Driver:
    """Submits, steps and cancels by the turn, in phases; each begins once all of the one before has ended."""

    def __init__(self, engine: Engine, model: OpenModel, *, reuse: bool = True) -> None:
        self._engine, self._model, self._reuse = engine, model, reuse
        self._number = 0

    def run(self, phases: Any) -> list[tuple[Asked, Got]]:
        """The requests of all phases with what they got."""
        return [pair for phase in phases for pair in self._phase(phase)]

    def _phase(self, asked: list[Asked]) -> list[tuple[Asked, Got]]:
        made = [(one, Got()) for one in asked]
        names: dict[int, str] = {}
        last = max(one.start + (one.cancel_after or 0) for one in asked)
        for turn in range(10_000):
            for place, (one, got) in enumerate(made):
                if one.start == turn:
                    names[place] = self._submit(one, got)
                if one.cancel_after is not None and one.start + one.cancel_after == turn:
                    self._engine.cancel(names[place])
            self._engine.step()
            if turn >= last and self._engine.idle:
                return made
        raise AssertionError("the engine does not come to an end")

    def _submit(self, asked: Asked, got: Got) -> str:
        self._number += 1
        stage = RecordingStage()
        got.logits = stage.logits
        params = SamplingParams(max_tokens=asked.count, temperature=asked.temperature, seed=3, ignore_eos=True)
        job = Job(
            id=f"request {self._number}",
            ids=asked.ids,
            sampling=admit(len(asked.ids), params, self._model.limits),
            priority=asked.priority,
            salt=asked.salt,
            want="hidden" if asked.head == "hidden" else "token",
            reuse=self._reuse,
            stages=(stage,) if asked.head == "logits" else (),
        )

        def sink(event: Event) -> None:
            got.tokens += event.ids
            got.hidden = event.hidden if event.hidden is not None else got.hidden
            got.outcome, got.error = event.outcome or got.outcome, event.error or got.error

        self._engine.submit(job, sink)
        return job.id


def _spine(tiny: TinyProgram, trace: Trace) -> tuple[list[Asked], ...]:
    """The phases of ``trace``: two long answers for which the pages are too few, then prompts with one beginning."""
    longest = tiny.program.max_seq
    first, second = _prompt(tiny, 0, 10), _prompt(tiny, 1, 10)
    crowded = [
        Asked(ids=first, count=longest - 11, priority=9),
        Asked(ids=second, count=longest - 11, priority=8, head="logits"),
        Asked(ids=_prompt(tiny, 2, 5), count=longest - 6, start=1, cancel_after=trace.cancel_after),
        *trace.extra,
    ]
    common = _prompt(tiny, 0, 20)
    shared = [Asked(ids=(*common, token), count=4, head=head) for token, head in ((7, "logits"), (8, "token"))]
    return crowded, [Asked(ids=common, count=1, head="logits")], [*shared, replace(shared[0], count=6)]


def _prompt(tiny: TinyProgram, family: int, length: int) -> tuple[int, ...]:
    return tuple((7 * place * (family + 1) + place // 5 + family) % tiny.spec.vocab_size for place in range(length))


def _traces(tiny: TinyProgram) -> st.SearchStrategy[Trace]:
    requests = st.builds(
        lambda family, length, **fields: Asked(ids=_prompt(tiny, family, length), **fields),
        family=st.integers(0, _FAMILIES - 1),
        length=st.integers(1, tiny.program.max_seq - 10),
        count=st.integers(1, 8),
        head=st.sampled_from(["token", "logits", "logits"] + ["hidden"] * ("hidden" in _heads(tiny))),
        temperature=st.sampled_from([0.0, 0.0, 0.9]),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "other"]),
        start=st.integers(0, 20),
        cancel_after=st.none() | st.integers(0, 8),
    )
    return st.builds(
        Trace,
        extra=st.lists(requests, min_size=1, max_size=6).map(tuple),
        chunk_tokens=st.integers(2, 16),
        max_tokens=st.integers(8, tiny.program.max_tokens),
        draft_tokens=st.sampled_from([0, 0, 3]),
        cancel_after=st.integers(0, 6),
    )


def _heads(tiny: TinyProgram) -> tuple[str, ...]:
    executor = tiny.executor()
    try:
        heads: tuple[str, ...] = executor.capabilities().heads
        return heads
    finally:
        executor.close()
