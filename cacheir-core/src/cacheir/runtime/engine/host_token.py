"""The next token where the host picks it: logits through the job's stages, then the one definition of sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheir.errors import CacheIRError, RequestError
from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.job import TokenLogprobs
from cacheir.runtime.host_sampling import pick_on_host

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Fault:
    """Why there is no token: a sentence for the client, and whose fault it is (``job.ERROR_KINDS``)."""

    sentence: str
    kind: str = "internal"


NO_TOKEN = Fault("the executor gave no token for a row that wants one")


@dataclass(frozen=True)
class Picked:
    """A token with the logprobs that were asked for, or the fault that is there instead."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    fault: Fault | None = None


def pick_token(entry: Entry, logits: np.ndarray, mask: np.ndarray | None) -> Picked:
    """The token for ``logits`` f32 [V], which come out of the entry's last token.

    The logprobs are those of the model's own distribution, before stages and filters.
    """
    job = entry.job
    try:
        token, error = pick_on_host(
            logits,
            job.sampling,
            entry.sequence.ids,
            entry.answer.sampled,
            mask,
            sampler=entry.sampler,
            stages=job.stages,
        )
    except CacheIRError as fault:  # a plugin's sampler or processor costs its own request, and no other
        return Picked(fault=Fault(str(fault), "request" if isinstance(fault, RequestError) else "internal"))
    wanted = job.sampling.logprobs
    if token is None:
        return Picked(fault=fault_of(error, logits))
    return Picked(token, None if wanted is None else token_logprobs(logits, token, wanted))


def fault_of(sentence: str | None, logits: np.ndarray) -> Fault:
    """Whose fault it is that ``pick_on_host`` found no token: the model's where ``logits`` f32 [V] are no numbers.

    Otherwise every token is barred by what the request asked for, such as a grammar within allowed ids.
    """
    import numpy as np

    own = bool(np.isfinite(logits).all())
    return Fault(sentence or NO_TOKEN.sentence, "request" if own else "internal")


def token_logprobs(logits: np.ndarray, token: int, top: int) -> TokenLogprobs:
    """The log softmax of ``logits`` f32 [V], taken in float64: that of ``token`` and the ``top`` likeliest ids."""
    import numpy as np

    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    logs = shifted - np.log(np.exp(shifted).sum())
    count = min(top, len(logs))
    best = np.argpartition(-logs, count - 1)[:count] if count else np.empty(0, np.int64)
    # By logprob, and by id among equals: two runs give the same list.
    order = sorted((-float(logs[place]), int(place)) for place in best)
    return TokenLogprobs(token=token, logprob=float(logs[token]), top=tuple((place, -loss) for loss, place in order))
