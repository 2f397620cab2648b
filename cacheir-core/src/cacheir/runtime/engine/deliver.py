"""What clients are told: each listener of a computation gets the same text, and its own times at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.job import Event, Listener, TokenLogprobs, Usage


def deliver(entry: Entry, text: str, ids: tuple[int, ...], logprobs: TokenLogprobs | None, now: float) -> None:
    """A token's text to every listener; nothing where neither text nor id came of it."""
    entry.text += text
    entry.told += len(ids)
    told: tuple[TokenLogprobs, ...] = ()
    if logprobs is not None:
        entry.logprobs.append(logprobs)
        told = (logprobs,)
    for listener in tuple(entry.listeners):  # whoever is told may cancel, himself or another
        if listener.ended:
            continue
        if not listener.first_token:
            listener.first_token = max(now, listener.arrived)  # who came while others were told joined later than it
        if text or ids:
            prompt = _prompt(entry, listener)
            listener.sink(Event(job_id=listener.job.id, text=text, ids=ids, logprobs=told, prompt_logprobs=prompt))


def join(entry: Entry, listener: Listener) -> None:
    """A client that joins late is told at once what the others have."""
    listener.shared = True
    if entry.text or entry.told:
        listener.first_token = listener.arrived
        listener.sink(
            Event(
                job_id=listener.job.id,
                text=entry.text,
                ids=tuple(entry.answer.ids[: entry.told]),
                logprobs=tuple(entry.logprobs),
                prompt_logprobs=_prompt(entry, listener),
            )
        )


def deliver_end(
    entry: Entry,
    listeners: Sequence[Listener],
    outcome: str,
    now: float,
    *,
    error: str | None = None,
    kind: str | None = None,
    hidden: Any = None,
) -> None:
    """The last event of each listener."""
    for listener in tuple(listeners):
        listener.ended = True
        listener.sink(
            Event(
                job_id=listener.job.id,
                outcome=outcome,
                error=error,
                error_kind=kind,
                hidden=hidden,
                prompt_logprobs=_prompt(entry, listener),
                usage=_usage(entry, listener, now),
            )
        )


def _prompt(entry: Entry, listener: Listener) -> tuple[TokenLogprobs | None, ...] | None:
    """The logprobs of the prompt, for a listener's first event."""
    if entry.job.prompt_logprobs is None or listener.prompt_told:
        return None
    listener.prompt_told = True
    return tuple(entry.prompt_logprobs)


def _usage(entry: Entry, listener: Listener, now: float) -> Usage:
    now = max(now, listener.arrived)
    started = max(entry.started or now, listener.arrived)
    return Usage(
        prompt_tokens=len(entry.job.ids),
        cached_tokens=entry.cached_tokens,
        sampled_tokens=entry.answer.sampled,
        preemptions=entry.preemptions,
        queue_ms=1e3 * (started - listener.arrived),
        ttft_ms=1e3 * ((listener.first_token or now) - listener.arrived),
        total_ms=1e3 * (now - listener.arrived),
        shared=listener.shared,
    )
