"""The only place that changes the queues: takes requests in, gives pages, applies a plan and what came back of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cacheir.runtime.answer import Answer
from cacheir.runtime.engine.deliver import deliver, deliver_end, join
from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.entry_pages import enter, enter_soon, give_back
from cacheir.runtime.engine.host_token import NO_TOKEN, fault_of, pick_token, token_logprobs
from cacheir.runtime.engine.job import Listener, TokenLogprobs
from cacheir.runtime.engine.plan_step import EnginePlan, Part
from cacheir.runtime.engine.prompt_lookup import accepted
from cacheir.runtime.engine.state import EngineState
from cacheir.runtime.executor import RowOutput
from cacheir.runtime.host_sampling import pick_on_host
from cacheir.runtime.sequence import Sequence as TokenSequence
from cacheir.runtime.vocabulary_mask import allows

if TYPE_CHECKING:
    import numpy as np


def take_in(state: EngineState, entry: Entry) -> None:
    """A new computation waits."""
    state.changes += 1
    state.waiting.append(entry)
    for listener in entry.listeners:
        state.by_job[listener.job.id] = entry
    if (key := entry.job.duplicate_key) is not None:
        state.by_key[key] = entry
    state.counters.prompt_tokens += len(entry.job.ids)


def take_twin(state: EngineState, entry: Entry, listener: Listener) -> None:
    """One more client of a computation that is under way; it gets what the others had."""
    state.changes += 1
    entry.listeners.append(listener)
    entry.bounded = entry.bounded or listener.job.deadline is not None
    entry.priority = max(entry.priority, listener.job.priority)
    state.by_job[listener.job.id] = entry
    state.counters.deduplicated_requests += 1
    join(entry, listener)


def turn(state: EngineState) -> None:
    """What is done before each plan.

    Whoever passed a length beyond which the model turns all keys otherwise is computed anew from the first token; pages
    that lie behind a window go back.
    """
    for entry in state.running if state.switches else ():
        rotation = sum(len(entry.sequence.ids) > switch for switch in state.switches)
        if rotation != entry.sequence.rotation:
            state.changes += 1
            give_back(state, entry)
            entry.sequence.cached, entry.sequence.rotation = 0, rotation
    for entry in state.running if state.kv.windowed else ():
        entry.sequence.tables = state.kv.trim(entry.sequence.tables, entry.sequence.cached)


def make_room(state: EngineState, plan: EnginePlan, now: float, then: int = 0) -> None:
    """Those who leave give their pages back, those who are admitted get theirs, and every row what it will write.

    ``then`` are decode steps behind this one, which an executor may begin.
    """
    for entry in plan.preempted:
        assert isinstance(entry, Entry)
        _preempt(state, entry)
    for entry in plan.admitted:
        assert isinstance(entry, Entry)
        # All of them first: what one is about to use must not be evicted for another.
        entry.nodes = state.found(entry)
        entry.sequence.tables = state.index.acquire(entry.nodes)
    admitted = [entry for entry in plan.admitted if isinstance(entry, Entry)]
    restored = state.index.restore([(entry.nodes, entry.sequence.tables) for entry in admitted])
    for entry, tables in zip(admitted, restored):
        entry.sequence.tables = tables
        _admit(state, entry, now)
    if admitted:
        _rank(state, admitted)
    size, groups = state.kv.page_tokens, len(state.kv.pools)
    for part in plan.parts:
        entry = part.entry
        assert isinstance(entry, Entry)
        stop, pages = entry.sequence.cached + part.fed + plan.ahead - 1 + then, entry.pages
        if stop > pages * size:
            state.index.make_room([-(-stop // size) - pages] * groups)
            entry.sequence.tables = state.kv.reserve(entry.sequence.tables, entry.sequence.cached, stop)


def take_row(state: EngineState, part: Part, output: RowOutput, now: float, mode: str = "decode") -> None:
    """What one row of a step of ``mode`` brought: its tokens are computed, and the next one is part of the answer."""
    entry = part.entry
    assert isinstance(entry, Entry)
    sequence = entry.sequence
    if not entry.running:  # cancelled while the step ran
        state.counters.discarded_tokens += part.last
        return
    if output.error is not None:
        end(state, entry, "error", now, error=output.error)
        return
    if part.draft and output.logits is not None:
        _take_draft(state, entry, part.draft, output.logits, now)
        return
    if entry.all_logits and output.logits is not None:
        _note_prompt(entry, part, output)
    sequence.cached += part.tokens
    if not part.last:
        enter_soon(state, entry)
    elif entry.job.want == "hidden":
        enter(state, entry)
        end(state, entry, "stop", now, hidden=None if output.hidden is None else output.hidden[-1])
    else:
        token, logprobs, fault = output.token, None, NO_TOKEN
        if entry.on_host and output.logits is not None:
            picked = pick_token(entry, output.logits[-1], state.mask)
            token, logprobs, fault = picked.token, picked.logprobs, picked.fault or fault
        if token is None:
            end(state, entry, "error", now, error=fault.sentence, kind=fault.kind)
        elif state.mask is not None and not allows(state.mask, token):
            # The likeliest of all ids has no text. The token before it is computed once more, within the mask.
            sequence.cached -= 1
            entry.masked = True
            state.changes += 1
        else:
            entry.masked = False
            if entry.job.trace is not None:
                entry.job.trace.note((token,), mode, len(sequence.ids), sequence.tables, state.kv.page_tokens)
            enter_soon(state, entry)
            take_token(state, entry, token, now, logprobs)


def take_ahead(state: EngineState, entry: Entry, tokens: Sequence[int], now: float, step: str = "run_ahead") -> None:
    """The tokens that one call brought for one row, up to the one that ends the answer; told in one event."""
    mask, sequence = state.mask, entry.sequence
    barred = len(tokens)
    if mask is not None:
        barred = next((place for place, token in enumerate(tokens) if not allows(mask, token)), barred)
    known = len(entry.answer.ids)
    text, used = entry.answer.push_all(tokens[:barred])
    if entry.job.trace is not None:
        entry.job.trace.note(tokens[:used], step, len(sequence.ids), sequence.tables, state.kv.page_tokens)
    sequence.cached += used
    sequence.ids.extend(tokens[:used])
    state.counters.sampled_tokens += used
    if used:
        entry.first_token = entry.first_token or now
        state.outbox.post(deliver, entry, text, tuple(entry.answer.ids[known:]), None, now)
    if entry.answer.finish_reason is not None:
        state.counters.discarded_tokens += len(tokens) - used
        if entry.running:  # a client may have cancelled when it was told
            end(state, entry, entry.answer.finish_reason, now)
    elif barred < len(tokens):
        entry.masked = True
        state.changes += 1
    elif entry.running:
        enter(state, entry)


def take_token(state: EngineState, entry: Entry, token: int, now: float, logprobs: TokenLogprobs | None = None) -> None:
    """One more token of the answer: its text goes out, and the answer may end with it.

    Where clients are told later, the text is made then too, unless a stop string in it could end the answer.
    """
    answer, outbox = entry.answer, state.outbox
    known = len(answer.ids)
    entry.sequence.ids.append(token)
    entry.first_token = entry.first_token or now
    state.counters.sampled_tokens += 1
    if outbox.holds and not entry.job.sampling.stop:
        answer.take(token)
        ids = tuple(answer.ids[known:])
        outbox.post(_tell, entry, answer.finish_reason is not None, ids, logprobs if ids else None, now)
    else:
        text = answer.push(token)
        ids = tuple(answer.ids[known:])
        outbox.post(deliver, entry, text, ids, logprobs if ids else None, now)
    if answer.finish_reason is not None and entry.running:  # a client may have cancelled when it was told
        end(state, entry, answer.finish_reason, now)


def cancel(state: EngineState, job_id: str, now: float) -> bool:
    """One client goes; with the last one its computation ends. False where there is no such job any more."""
    state.outbox.flush()
    entry = state.by_job.get(job_id)
    if entry is None:
        return False
    listener = next(listener for listener in entry.listeners if listener.job.id == job_id)
    _leave(state, entry, listener, "cancelled", now)
    return True


def end(
    state: EngineState,
    entry: Entry,
    outcome: str,
    now: float,
    *,
    error: str | None = None,
    kind: str = "internal",
    hidden: object = None,
) -> None:
    """The computation ends, however it does: all pages go back, and every client is told.

    ``kind`` says whose an ``error`` is (``job.ERROR_KINDS``).
    """
    state.changes += 1
    if entry.running:
        state.running.remove(entry)
        entry.running = False
    else:
        state.waiting.remove(entry)
    give_back(state, entry)
    for listener in entry.listeners:
        del state.by_job[listener.job.id]
        state.counters.requests[outcome] += 1
    if (key := entry.job.duplicate_key) is not None:
        del state.by_key[key]  # it is this one's: another with that key would have been its twin
    told = None if error is None else kind
    state.outbox.post(deliver_end, entry, entry.listeners, outcome, now, error=error, kind=told, hidden=hidden)


def expire(state: EngineState, now: float) -> None:
    """Ends every job whose deadline has passed; twins with a later one go on."""
    for entry in (*state.running, *state.waiting):
        if not entry.bounded:
            continue
        late = [x for x in entry.listeners if x.job.deadline is not None and now >= x.job.deadline]
        if late:  # they still get what came in time
            state.outbox.flush()
        for listener in late:
            if state.by_job.get(listener.job.id) is entry:  # a client that was told may have cancelled
                state.counters.violations["deadline"] += 1
                _leave(state, entry, listener, "deadline", now)


def new_entry(state: EngineState, listener: Listener, answer: Answer, number: int, *, on_host: bool) -> Entry:
    """An entry for a job that no other computation answers."""
    job = listener.job
    sequence = TokenSequence(ids=list(job.ids), tables=state.kv.empty())
    return Entry(
        job=job,
        number=number,
        arrived=listener.arrived,
        sequence=sequence,
        answer=answer,
        on_host=on_host,
        listeners=[listener],
        windowed=state.kv.windowed,
        priority=job.priority,
        bounded=job.deadline is not None,
    )


def _leave(state: EngineState, entry: Entry, listener: Listener, outcome: str, now: float) -> None:
    """One client goes; with the last one its computation ends."""
    if len(entry.listeners) == 1:
        end(state, entry, outcome, now)
        return
    state.changes += 1
    entry.listeners.remove(listener)
    del state.by_job[listener.job.id]
    state.counters.requests[outcome] += 1
    state.outbox.post(deliver_end, entry, (listener,), outcome, now)


def _admit(state: EngineState, entry: Entry, now: float) -> None:
    path, again = entry.nodes, entry.started != 0.0
    state.changes += 1
    entry.sequence.cached = len(path) * state.kv.page_tokens
    state.waiting.remove(entry)
    state.running.append(entry)
    entry.running = True
    if again:
        state.counters.recomputed_tokens += max(0, entry.lost - entry.sequence.cached)
        return
    entry.started = now
    entry.cached_tokens = entry.sequence.cached
    state.counters.queue_seconds += now - entry.arrived
    job = entry.job
    if state.reuses and job.reuse and job.prompt_logprobs is None:
        found = len(state.index.match(job.ids, job.salt)) * state.kv.page_tokens
        state.index.count(job.ids, job.salt, found, entry.cached_tokens)
    else:
        state.index.counts.missed_tokens["not_asked"] += len(job.ids)


def _rank(state: EngineState, admitted: Sequence[Entry]) -> None:
    """Those who run stand in order of rank again; counts who of ``admitted`` went ahead of a higher priority."""
    state.running.sort(key=lambda one: (-one.priority, one.number))
    highest = max((entry.priority for entry in state.waiting), default=admitted[-1].priority)
    for entry in reversed(admitted):  # behind each stand those who were admitted after it, and who still wait
        state.counters.aged_admissions += highest > entry.priority
        highest = max(highest, entry.priority)


def _preempt(state: EngineState, entry: Entry) -> None:
    """Back to the queue without pages; what is still in the prefix index when it returns is not computed again."""
    state.changes += 1
    state.counters.preemptions["spill" if state.spills else "recompute"] += 1
    entry.lost = entry.sequence.cached
    entry.preemptions += 1
    give_back(state, entry)
    entry.sequence.cached = 0
    state.running.remove(entry)
    state.waiting.append(entry)
    entry.running = False


def _tell(entry: Entry, ended: bool, ids: tuple[int, ...], logprobs: TokenLogprobs | None, now: float) -> None:
    """A token that was taken without its text; the text of the last holds all that was held back."""
    deliver(entry, entry.answer.text(ended=ended), ids, logprobs, now)


def _take_draft(state: EngineState, entry: Entry, draft: tuple[int, ...], logits: np.ndarray, now: float) -> None:
    """``logits`` f32 [1 + draft, V]: the tokens that the model chooses, up to the first that was not proposed."""
    chosen: list[int] = []
    for number, row in enumerate(logits):
        ids = [*entry.sequence.ids, *draft[:number]]
        token, error = pick_on_host(row, entry.job.sampling, ids, entry.answer.sampled + number, state.mask)
        if token is None:
            if not chosen:
                fault = fault_of(error, row)
                end(state, entry, "error", now, error=fault.sentence, kind=fault.kind)
                return
            break
        chosen.append(token)
        if number < len(draft) and token != draft[number]:
            break
    right = accepted(draft, chosen)
    state.counters.draft_tokens["accepted"] += right
    state.counters.draft_tokens["rejected"] += len(draft) - right
    take_ahead(state, entry, chosen, now, "draft")


def _note_prompt(entry: Entry, part: Part, output: RowOutput) -> None:
    """The logprobs of the prompt's tokens: the logits after one token are about the next; the first has none."""
    assert output.logits is not None
    top, ids = entry.job.prompt_logprobs or 0, entry.job.ids
    if not entry.prompt_logprobs:
        entry.prompt_logprobs.append(None)
    for logits, place in zip(output.logits, range(entry.sequence.cached, entry.sequence.cached + part.tokens)):
        if len(entry.prompt_logprobs) <= place + 1 < len(ids):  # once, though a preemption computes it again
            entry.prompt_logprobs.append(token_logprobs(logits, ids[place + 1], top))
