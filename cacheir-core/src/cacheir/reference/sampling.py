"""What sampling means: filters, then Gumbel-max over the survivors. Every backend's sampled head is held against it.

For one row, in this order:

1. Tokens that the mask leaves out are gone.
2. ``temperature`` 0 takes the largest logit, the lowest id of equals, and draws nothing.
3. z = (logit - largest logit) / temperature in float32, so that no temperature overflows. exp(z) is a token's weight.
4. ``top_k`` keeps the k largest z, of equals those with the lowest ids; 0 keeps all.
5. ``top_p`` puts the survivors in order of falling z, rising id, and keeps a token while the weight before it is less
   than ``top_p`` of their whole weight: the fewest tokens that reach that share, at least one. 1 keeps all.
6. ``typical_p`` does the same in the order of how far -log(weight share) lies from the entropy of the survivors,
   the nearest first (Meister et al., arXiv 2202.00666). 1 keeps all.
7. ``min_p`` keeps the tokens whose weight is at least ``min_p`` of the largest that is left; 0 keeps all.
8. Each survivor v gets the noise of word v of the row's Philox stream (``cacheir.reference.philox``), and the largest
   z + noise wins, the lowest id of equals. A token's noise depends on seed, position, draw and its id alone, so filters
   and neighbours never change it.

Weights are summed in float64 and in order; z and noise are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.reference.elementwise import OutTypes
from cacheir.reference.philox import words

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

NO_TOKEN = -1
_LARGEST_UNIFORM = np.float32(1 - 2.0**-24)


def sample(
    logits: F32,
    temperature: F32,
    top_k: I32,
    top_p: F32,
    min_p: F32,
    seed: NDArray[np.uint64],
    position: I32,
    draw: I32,
    mask: NDArray[np.uint32] | None = None,
    *,
    out_types: OutTypes | None = None,
) -> I32:
    """One token for each row of ``logits`` [R, V], i32 [R]; all parameters are [R], ``mask`` is [R, ceil(V / 32)].

    A row without a token to choose from, or with a NaN or +infinity among those it may choose from, gives -1.
    """
    out = np.empty(len(logits), np.int32)
    for row in range(len(logits)):
        allowed = None if mask is None else allowed_tokens(mask[row], logits.shape[1])
        out[row] = sample_row(
            logits[row],
            temperature=float(temperature[row]),
            top_k=int(top_k[row]),
            top_p=float(top_p[row]),
            min_p=float(min_p[row]),
            seed=int(seed[row]),
            position=int(position[row]),
            draw=int(draw[row]),
            allowed=allowed,
        )
    return out


def sample_row(
    logits: F32,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    seed: int = 0,
    position: int = 0,
    draw: int = 0,
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """The token of one row, ``logits`` [V]; -1 where there is none to choose or a logit is NaN or +infinity."""
    if allowed is not None:
        logits = np.where(allowed, logits, np.float32(-np.inf))
    best = int(logits.argmax())
    largest = logits[best]
    if not np.isfinite(largest):  # a NaN is the largest too, if there is one
        return NO_TOKEN
    if not temperature > 0:
        return best
    with np.errstate(over="ignore"):
        z = (logits - largest) / np.float32(temperature)
    ids = survivors(z, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    noise = gumbel(words(seed, position, draw, ids))
    return int(ids[(z[ids] + noise).argmax()])


def survivors(
    z: F32, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, typical_p: float = 1.0
) -> NDArray[np.int64]:
    """Ids, rising, of the tokens that the filters keep; ``z`` [V] is at most 0 and 0 for the likeliest token."""
    ids = np.flatnonzero(z > -np.inf)
    if 0 < top_k < len(ids):
        ids = _largest(z, ids, top_k)
    if top_p < 1:
        ids = _fewest_that_reach(z, ids, max(top_p, 0.0))
    if typical_p < 1:
        ids = _most_typical(z, ids, max(typical_p, 0.0))
    if min_p > 0:
        # Of the largest weight that is left, so at least one token stays.
        wide = z[ids].astype(np.float64)
        ids = ids[np.exp(wide - wide.max()) >= min(min_p, 1.0)]
    return ids


def gumbel(bits: NDArray[np.uint32]) -> F32:
    """-log(-log1p(-u)) in float32 with u = (bits + 1/2) / 2 ** 32, limited below 1."""
    u = np.minimum((bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32), _LARGEST_UNIFORM)
    noise: F32 = -np.log(-np.log1p(-u))
    return noise


def allowed_tokens(mask: NDArray[np.uint32], vocabulary: int) -> NDArray[np.bool_]:
    """The truth values [V] of a packed mask [ceil(V / 32)]: bit v % 32 of word v // 32 is token v."""
    little: NDArray[Any] = np.ascontiguousarray(mask).astype("<u4", copy=False).view(np.uint8)
    return np.unpackbits(little, count=vocabulary, bitorder="little").astype(np.bool_)


def _fewest_that_reach(z: F32, ids: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    weight = np.exp(z[ids].astype(np.float64))
    total = weight.sum()
    # Together, tokens below this weight have less than what may be left out: none of them can be needed, nor be sorted.
    likely = ids[weight >= (1 - share) * total / len(ids)]
    order = likely[np.argsort(-z[likely], kind="stable")]
    weight = np.exp(z[order].astype(np.float64))
    keep = np.cumsum(weight) - weight < share * total
    keep[0] = True
    return np.sort(order[keep])


def _most_typical(z: F32, ids: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    wide = z[ids].astype(np.float64)
    weight = np.exp(wide)
    total = weight.sum()
    logs = wide - np.log(total)
    entropy = -(np.exp(logs) * logs).sum()
    order = np.argsort(np.abs(-logs - entropy), kind="stable")
    keep = np.cumsum(weight[order]) - weight[order] < share * total
    keep[0] = True
    return np.sort(ids[order[keep]])


def _largest(z: F32, ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    values = z[ids]
    smallest_kept = np.partition(values, len(values) - count)[len(values) - count]
    above = ids[values > smallest_kept]
    equal = ids[values == smallest_kept][: count - len(above)]
    return np.sort(np.concatenate([above, equal]))
