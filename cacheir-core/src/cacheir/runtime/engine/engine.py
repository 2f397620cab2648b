"""The loop over steps: plan, make room, run, apply. One thread owns an engine; ``engine_thread`` gives it one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cacheir.errors import QueueFull, RequestError, UsageError
from cacheir.runtime.answer import Answer
from cacheir.runtime.answer_clock import AHEAD_SECONDS, MAX_AHEAD, MAX_STOPPABLE, STOPPABLE_SECONDS
from cacheir.runtime.engine import apply_step
from cacheir.runtime.engine.ahead_call import AheadCall
from cacheir.runtime.engine.audit import AuditFinding, Auditor, tolerance_of
from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.incident import Decision, Recorder
from cacheir.runtime.engine.job import Event, Job, Listener, Sink
from cacheir.runtime.engine.plan_step import EngineLimits, EnginePlan, Part, order_waiting
from cacheir.runtime.engine.planner import Order, Planner
from cacheir.runtime.engine.prefix_index import PrefixIndex
from cacheir.runtime.engine.prompt_lookup import Speculation, draft_for
from cacheir.runtime.engine.queue_limits import check_room
from cacheir.runtime.engine.spill import SpillPolicy, SpillStore
from cacheir.runtime.engine.state import EngineState
from cacheir.runtime.engine.step_data import is_masked, step_of
from cacheir.runtime.engine.step_runner import StepRunner
from cacheir.runtime.engine.steps_to_come import steps_behind, steps_in_call
from cacheir.runtime.executor import Step
from cacheir.runtime.host_sampling import HostSampler
from cacheir.runtime.open_model import OpenModel
from cacheir.runtime.request import check_length

NO_DRAFTS = Speculation()
NO_SPILL = SpillPolicy()
# While the executor runs ahead, tokens of so many steps are applied in one go (``AheadCall``). A client waits for its
# tokens no longer than in a short call: of slow steps fewer are applied at once.
APPLY_STEPS = 8
APPLY_SECONDS = AHEAD_SECONDS / 2


class Engine:
    """Continuous batching over one open model. Not for several threads: see ``EngineThread``.

    ``submit`` queues a job and ``step`` moves all that run by one step; events go to the jobs' sinks from within. The
    engine takes the runner's lock for a step, so sessions of the same model may be used beside it. Without
    ``share_duplicates`` every job is computed for itself, whatever the job says; without ``fast_lane`` no step has the
    plan of the one before.

    Where the executor overlaps (``Capabilities.overlaps``), what a step brought is told, and the step after next is
    planned, while the next one runs: events of a step may come in the call after its own, or by ``tell``.

    What a sink raises is raised at the end of that ``step``, ``tell`` or ``close``, once everybody else was told.
    """

    def __init__(
        self,
        model: OpenModel,
        limits: EngineLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        order: Order = order_waiting,
        speculation: Speculation = NO_DRAFTS,
        record: int = 256,
        audit_every: int = 0,
        spill: SpillPolicy = NO_SPILL,
        share_duplicates: bool = True,
        fast_lane: bool = True,
    ) -> None:
        self._model = model
        self._clock = clock
        self._speculation = speculation
        self._executor = model.executor
        capabilities = model.executor.capabilities()
        self._samples = "token" in capabilities.heads and (model.runner.mask is None or capabilities.masks)
        self._runs_ahead = self._masks_ahead = capabilities.run_ahead and self._samples
        self._stops = capabilities.stops_ahead
        self._begins = capabilities.begins_ahead
        self.wanted: Callable[[], bool] = lambda: False  # whether somebody waits for a step to end; any thread's word
        self._told_rows: tuple[tuple[Part, ...], tuple[tuple[str, int], ...]] = ((), ())
        # Of the last decode step, by which run_ahead is bounded; before the first what an engine before this one saw.
        self._step_seconds = model.runner.engine_step_seconds
        self._arrivals = 0
        self._faults: list[Exception] = []  # of sinks
        self._shares = share_duplicates
        self.recorder = Recorder(record)
        tolerance = tolerance_of(capabilities, model.kv_groups)
        self._auditor = Auditor(model.executor, model.program.group_layers, every=audit_every, tolerance=tolerance)
        self.refused_ahead = ""
        kv, spec = model.runner.kv, model.program.spec
        self.store = SpillStore(model.executor, spill, kv.page_tokens, model.kv_groups)
        self.state = EngineState(
            kv=kv,
            index=PrefixIndex(kv, self.store),
            limits=limits or default_limits(model),
            mask=model.runner.mask,
            reuses=spec is None or not spec.keys_depend_on_length,
            switches=model.runner.switches,
            spills=spill.mode != "off",
        )
        self._planner = Planner(self.state, order, fast_lane)
        self._steps = StepRunner(model.executor, self.state.outbox)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.state.running and not self.state.waiting

    @property
    def findings(self) -> list[AuditFinding]:
        """Audits that found a difference."""
        return self._auditor.findings

    def submit(self, job: Job, sink: Sink) -> None:
        """Queues ``job``; its events go to ``sink``. ``QueueFull``, or ``RequestTooLong`` for one that never fits."""
        self.submit_all([(job, sink)])

    def submit_all(self, jobs: Sequence[tuple[Job, Sink]]) -> None:
        """Queues all of ``jobs``, or raises as ``submit`` and takes none."""
        state = self.state
        state.outbox.flush()
        if not self._shares:
            jobs = [(replace(job, share_duplicates=False), sink) for job, sink in jobs]
        ids: set[str] = set()
        for job, _ in jobs:
            if job.id in state.by_job or job.id in ids:
                raise RequestError(f"there is already a request {job.id!r}", hint="give every request an id of its own")
            ids.add(job.id)
            check_length(len(job.ids), self._model.limits.max_seq)
        samplers = [self._model.make_sampler(job.sampling) for job, _ in jobs]
        try:
            check_room(state, [job for job, _ in jobs if job.duplicate_key not in state.by_key])
        except QueueFull:
            state.counters.refused["queue"] += len(jobs)
            raise
        for (job, sink), sampler in zip(jobs, samplers):
            self._take(job, sink, sampler)

    def _take(self, job: Job, sink: Sink, sampler: HostSampler | None) -> None:
        state = self.state
        self.recorder.came(job)

        def telling(event: Event) -> None:
            self.recorder.told(event)
            try:
                sink(event)
            except Exception as error:  # noqa: BLE001  it must cost no other client a token, nor an end
                self._faults.append(error)

        listener = Listener(job=job, sink=telling, arrived=self._clock())
        twin = state.by_key.get(job.duplicate_key) if job.duplicate_key is not None else None
        if twin is not None:
            apply_step.take_twin(state, twin, listener)
            return
        encoder = self._model.encoder
        answer = Answer(self._model.tokenizer, job.sampling, at_start=encoder.at_start(job.ids))
        on_host = not self._samples or bool(job.stages) or job.sampling.on_host or job.prompt_logprobs is not None
        on_host = on_host or job.want != "token"
        entry = apply_step.new_entry(state, listener, answer, self._arrivals, on_host=on_host)
        entry.sampler = sampler
        self._arrivals += 1
        apply_step.take_in(state, entry)

    def cancel(self, job_id: str) -> bool:
        """Ends a job with ``cancelled``; False where it has ended already."""
        with self._model.runner.lock:
            return apply_step.cancel(self.state, job_id, self._clock())

    def step(self) -> bool:
        """One step for all that run; False where there was nothing to do. Ends with what a sink raised, if one did."""
        moved = self._step()
        self._raise_fault()
        return moved

    def _step(self) -> bool:
        state, now = self.state, self._clock()
        with self._model.runner.lock:
            self._model.runner.check_open()
            apply_step.expire(state, now)
            if self.idle:
                state.outbox.flush()
                return False
            apply_step.turn(state)
            plan = self._plan(now)
            if plan.waits:
                state.counters.waits[plan.waits] += 1
            then = self._then(plan)
            apply_step.make_room(state, plan, now, then)
            self._auditor.check(state, plan)
            if not plan.parts:
                self._unblock(plan)
                state.outbox.flush()
                return True
            self._planner.note(plan)
            self._run(plan, then)
            if not state.running and not state.waiting:
                state.outbox.flush()
            seconds = self._clock() - now
        state.counters.step_seconds += seconds
        self._record(plan, seconds)
        return True

    def tell(self) -> None:
        """Tells clients what the last step brought, where that waits for the next one (``Capabilities.overlaps``)."""
        self.state.outbox.flush()
        self._raise_fault()

    def run(self) -> None:
        """Steps until nothing runs and nothing waits."""
        while self.step():
            pass

    def generate(self, jobs: Sequence[Job]) -> list[list[Event]]:
        """Runs ``jobs`` together to their ends; the events of each."""
        events: list[list[Event]] = [[] for _ in jobs]
        self.submit_all([(job, mine.append) for job, mine in zip(jobs, events)])
        self.run()
        return events

    def executor_counters(self) -> Mapping[str, int]:
        """What the executor counts of its own accord (``executor.CountingExecutor``), {} where it counts nothing."""
        count = getattr(self._executor, "counters", None)
        return dict(count()) if count is not None else {}

    def close(self) -> None:
        """Ends all jobs with ``cancelled`` and gives every page back, those of the prefix index too."""
        with self._model.runner.lock:
            for job_id in list(self.state.by_job):
                apply_step.cancel(self.state, job_id, self._clock())
            self.state.outbox.flush()
            self.state.index.clear()
            self.store.close()
        self._raise_fault()

    def _raise_fault(self) -> None:
        """What a client's sink raised first, now that everybody was told and every token is applied."""
        faults, self._faults = self._faults, []
        if faults:
            raise faults[0]

    def _plan(self, now: float) -> EnginePlan:
        state = self.state
        if self._speculation.draft_tokens:
            for entry in state.running:
                entry.draft = draft_for(entry, self._speculation)
        plan, origins = self._planner.plan(now, self._ahead())
        state.counters.plans.update(origins)
        return plan

    def _ahead(self) -> int:
        """How many steps one call of ``run_ahead`` may take."""
        state = self.state
        unforeseen = state.switches or any(entry.draft for entry in state.running)
        if not self._runs_ahead or state.waiting or unforeseen or not self._step_seconds:
            return 1
        if not self._masks_ahead and any(is_masked(entry, state) for entry in state.running):
            return 1
        return steps_in_call(state, int(self._ahead_seconds() / self._step_seconds), self._model.limits.max_seq)

    def _then(self, plan: EnginePlan) -> int:
        """How many decode steps the executor may begin behind ``plan``; 0 where it begins none."""
        unforeseen = self._speculation.draft_tokens or self.state.switches
        if unforeseen or not self._begins or not self._runs_ahead or plan.mode != "prefill" or not self._step_seconds:
            return 0
        return steps_behind(plan, self.state, int(self._ahead_seconds() / self._step_seconds))

    def _ahead_seconds(self) -> float:
        """How long a call may last: a deadline must not pass unseen."""
        stoppable = self._stops and not any(entry.bounded for entry in self.state.running)
        return STOPPABLE_SECONDS if stoppable else AHEAD_SECONDS

    def _meanwhile(self, plan: EnginePlan) -> None:
        """While ``plan`` runs: what ``_under_way`` says, and the step after is planned.

        Drafts, and the lengths at which a model turns its keys, depend on the tokens that are under way.
        """
        self._under_way(plan)
        if not self._speculation.draft_tokens and not self.state.switches:
            self._planner.foresee(plan, self._clock(), self._ahead())

    def _under_way(self, plan: EnginePlan) -> None:
        """While ``plan`` runs: clients are told what the step before brought, and the rows are named for the record."""
        self.state.outbox.flush()
        self._rows(plan)

    def _run(self, plan: EnginePlan, then: int) -> None:
        step = step_of(plan, self.state, then)
        if plan.ahead > 1 and self._run_ahead(plan, step):
            return
        began = self._clock()
        outputs = self._steps.run(step, lambda: self._meanwhile(plan))
        now = self._clock()
        self.state.counters.steps[plan.mode] += 1
        if plan.mode == "decode":
            # Alone a step has the host's time in it: up to twice what a call said of it says nothing else.
            known, taken = self._step_seconds, now - began
            self._note_step(known if known < taken < 2 * known else taken)
        else:
            self.store.token_seconds = (now - began) / sum(part.fed for part in plan.parts)
        for part, output in zip(plan.parts, outputs, strict=True):
            apply_step.take_row(self.state, part, output, now, plan.mode)

    def _run_ahead(self, plan: EnginePlan, step: Step) -> bool:
        """Whether the executor took ``step`` for several steps; its reason is kept where it did not."""
        portion = max(1, min(APPLY_STEPS, int(APPLY_SECONDS / max(self._step_seconds, 1e-9))))
        call = AheadCall(
            plan, self.state, self._clock, portion=portion,
            begun=lambda: self._under_way(plan), over=lambda: bool(self._faults) or self.wanted(),
        )  # fmt: skip
        self.state.outbox.holds = False
        began, most = self._clock(), self._ahead_seconds()
        try:
            self._executor.run_ahead(step, plan.ahead, call.sink)
        except UsageError as refusal:
            if call.steps:
                raise
            self.refused_ahead = str(refusal)
            if any(row.mask is not None for row in step.rows):  # without masks it may run ahead all the same
                self._masks_ahead = False
            else:
                self._runs_ahead = False
            return False
        except Exception:  # noqa: BLE001  whoever is at fault shows in a step of its own
            if not call.steps:
                return False
        finally:
            call.close()
        call.apply()
        now = self._clock()
        self.state.counters.steps["run_ahead"] += 1
        self.state.counters.violations["run_ahead"] += now - began > most
        self._note_step((now - began) / max(1, call.steps))
        call.end_failed(now)
        return True

    def _note_step(self, seconds: float) -> None:
        self._step_seconds = self._model.runner.engine_step_seconds = seconds

    def _unblock(self, plan: EnginePlan) -> None:
        """Nothing could run. If nobody runs any more, sessions beside the engine hold the pages: the first fails."""
        if plan.preempted or self.state.running:
            return
        entry = self._planner.waiting(self._clock())[0]
        sentence = "the request needs more KV pages than are free, and no request runs that would free some"
        apply_step.end(self.state, entry, "error", self._clock(), error=sentence, kind="capacity")

    def _rows(self, plan: EnginePlan) -> tuple[tuple[str, int], ...]:
        """The job of each row and the tokens that it feeds; a plan is often that of the step before."""
        if self._told_rows[0] is not plan.parts:
            self._told_rows = plan.parts, tuple((_id(part), part.fed) for part in plan.parts)
        return self._told_rows[1]

    def _record(self, plan: EnginePlan, seconds: float) -> None:
        self.recorder.decisions.append(
            Decision(
                number=sum(self.state.counters.steps.values()),
                mode=plan.mode,
                rows=self._rows(plan),
                admitted=tuple(entry.job.id for entry in plan.admitted if isinstance(entry, Entry)),
                preempted=tuple(entry.job.id for entry in plan.preempted if isinstance(entry, Entry)),
                ahead=plan.ahead,
                waits=plan.waits,
                seconds=seconds,
            )
        )


def default_limits(model: OpenModel) -> EngineLimits:
    """As many rows at once as the program takes."""
    steps = model.runner.limits
    return EngineLimits(
        max_batch=steps.max_rows,
        max_rows=steps.max_rows,
        max_tokens=steps.max_tokens,
        chunk_tokens=steps.chunk_tokens,
        max_ahead=MAX_STOPPABLE if model.executor.capabilities().stops_ahead else MAX_AHEAD,
    )


def _id(part: Part) -> str:
    assert isinstance(part.entry, Entry)
    return part.entry.job.id
