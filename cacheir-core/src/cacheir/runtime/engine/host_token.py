"""The next token where the host picks it: logits through the job's stages, then the one definition of sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheir.errors import CacheIRError
from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.job import TokenLogprobs
from cacheir.runtime.host_sampling import pick_on_host

if TYPE_CHECKING:
    import numpy as np


def pick_token(
    entry: Entry, logits: np.ndarray, mask: np.ndarray | None
) -> tuple[int | None, str | None, TokenLogprobs | None]:
    """Token, error and logprobs for ``logits`` f32 [V], which come out of the entry's last token.

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
        return None, str(fault), None
    wanted = job.sampling.logprobs
    if token is None or wanted is None:
        return token, error, None
    return token, None, token_logprobs(logits, token, wanted)


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
