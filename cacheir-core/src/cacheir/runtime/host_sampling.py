"""Sampling on the host from an executor's logits, where it has no head that samples within a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheir.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np


def sample_on_host(
    logits: np.ndarray, sampling: SamplingParams, position: int, draw: int, mask: np.ndarray | None
) -> tuple[int | None, str | None]:
    """The token for ``logits`` f32 [V], or the sentence that says why there is none.

    ``position`` is that of the last token fed, as in every executor, so that both ways draw the same numbers.
    """
    import numpy as np

    from cacheir.reference.sampling import NO_TOKEN, allowed_tokens, sample_row

    if not np.isfinite(logits).all():
        bad = int(np.flatnonzero(~np.isfinite(logits))[0])
        return None, f"the logits after position {position} are not finite, from id {bad} on ({logits[bad]})"
    token = sample_row(
        logits,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed or 0,
        position=position,
        draw=draw,
        allowed=None if mask is None else allowed_tokens(mask, len(logits)),
    )
    return (None, "the mask allows no token") if token == NO_TOKEN else (token, None)
