"""What a client asks of the engine, and what it is told: plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass as changing_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cacheir.quick_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

    from cacheir.runtime.host_sampling import LogitsStage
    from cacheir.runtime.provenance import Trace
    from cacheir.runtime.sampling import SamplingParams

# How a request can end. "error" comes with a sentence; the others are what was asked for.
OUTCOMES = ("stop", "length", "cancelled", "deadline", "error")

# Whose an error is: "request", what it allows leaves no token (a client's mistake); "capacity", pages that did not come
# free (it may be sent again); "internal", the model, the executor or a plugin.
ERROR_KINDS = ("request", "capacity", "internal")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request as it was admitted: ``ids`` are checked, ``sampling`` is as ``request.admit`` gives it.

    Among the waiting the higher ``priority`` goes first; waiting raises it (``EngineLimits.ageing_s``). ``deadline`` is
    on the engine's clock, None for none. Jobs with different ``salt`` never share pages. ``want`` is ``token`` or
    ``hidden`` (f32 [H] of the last position, no token). ``stages`` make the next token the host's business.
    ``prompt_logprobs`` asks for the logarithms of the prompt's own tokens, which no cache remembers. ``trace`` is
    filled with where each token came from; a job with one is computed for itself.
    """

    id: str
    ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    deadline: float | None = None
    salt: str = ""
    want: str = "token"
    reuse: bool = True
    share_duplicates: bool = True
    prompt_logprobs: int | None = None
    stages: tuple[LogitsStage, ...] = ()
    trace: Trace | None = None

    @cached_property
    def duplicate_key(self) -> tuple[Any, ...] | None:
        """Equal for jobs that must get the same answer from one computation; None where a job is for itself alone."""
        if not self.share_duplicates or not self.sampling.greedy or self.want != "token" or self.stages:
            return None
        if self.trace is not None:
            return None
        # Admission gives each request without a seed one of its own, and no greedy job draws by it.
        return (self.salt, self.ids, self.sampling.all_but_seed, self.reuse, self.prompt_logprobs)


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """A token's natural logarithm of probability, and the likeliest tokens with theirs, the likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a job cost, told with its last event. ``cached_tokens`` of the prompt were not computed for it."""

    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    preemptions: int
    queue_ms: float
    ttft_ms: float
    total_ms: float
    shared: bool = False  # another job's computation answered it


@dataclass(frozen=True, kw_only=True)
class Event:
    """A part of an answer: text that is ready and ids; the last one has an ``outcome`` (of ``OUTCOMES``) and ``usage``.

    The first one has the ``prompt_logprobs`` that the job asked for, None for the first token of the prompt.
    ``error`` is a sentence for the client, ``error_kind`` whose it is (of ``ERROR_KINDS``). ``hidden`` is f32 [H] where
    it was asked for.
    """

    job_id: str
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    hidden: np.ndarray | None = None
    outcome: str | None = None
    error: str | None = None
    error_kind: str | None = None
    usage: Usage | None = None


Sink = Callable[[Event], None]


@changing_dataclass
class Listener:
    """One client of an answer: where its events go, and from when its own times count."""

    job: Job
    sink: Sink
    arrived: float
    shared: bool = False
    first_token: float = 0.0
    prompt_told: bool = False  # the logprobs of the prompt went out, with its first event
    ended: bool = False  # the last event went out, and nothing follows
