"""How a rope type bends the frequencies of rotation, in float32 and in the order in which transformers computes.

Sources: ``modeling_rope_utils`` of transformers; Peng et al., "YaRN" (arXiv 2309.00071); Ding et al., "LongRoPE" (arXiv
2402.13753). The results are divisors of the plain frequencies, as ``RopeSpec.factors`` holds them: float64 numbers, of
which the op ``rope_table`` makes those very float32 frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


def linear_factors(dims: int, factor: float) -> tuple[float, ...]:
    """Every pair turns ``factor``, a float32 number, times slower."""
    import numpy as np

    return (float(np.float32(factor)),) * (dims // 2)


def llama3_factors(
    theta: float, dims: int, *, factor: float, low: float, high: float, original: int
) -> tuple[float, ...]:
    """Waves longer than ``original / low`` positions are stretched by ``factor``, those shorter than
    ``original / high`` stay, and the ones between are blended."""
    import numpy as np

    plain = _frequencies(theta, dims)
    one = np.float32(1)
    wave = one / plain * np.float32(2 * math.pi)  # torch divides a number by a tensor in these two steps
    slow = plain / np.float32(factor)
    share = (one / wave * np.float32(original) - np.float32(low)) / np.float32(high - low)
    blended = (one - share) * plain / np.float32(factor) + share * plain
    bent = np.where(wave > original / low, slow, np.where(wave < original / high, plain, blended))
    return _factors(plain, bent)


def yarn_factors(
    theta: float, dims: int, *, factor: float, original: int, fast: float, slow: float, truncate: bool
) -> tuple[float, ...]:
    """Pairs that turn more than ``fast`` times within ``original`` positions stay, those that turn less than ``slow``
    times are stretched by ``factor``, and the ones between are blended along the number of the pair."""
    import numpy as np

    def pair_of(turns: float) -> float:
        return (dims * math.log(original / (turns * 2 * math.pi))) / (2 * math.log(theta))

    first, last = pair_of(fast), pair_of(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    last += 0.001 if first == last else 0
    ramp = (np.arange(dims // 2, dtype=np.float32) - np.float32(first)) / np.float32(last - first)
    kept = np.float32(1) - np.clip(ramp, 0, 1)
    period = _periods(theta, dims)
    plain = np.float32(1) / period
    stretched = np.float32(1) / (np.float32(factor) * period)
    return _factors(plain, stretched * (np.float32(1) - kept) + plain * kept)


def yarn_magnitude(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """What cosine and sine are multiplied by where no ``attention_factor`` is given."""

    def of(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    return of(mscale) / of(mscale_all_dim) if mscale and mscale_all_dim else of(1.0)


def longrope_magnitude(factor: float, original: int) -> float:
    """What cosine and sine are multiplied by where no ``attention_factor`` is given."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def longrope_factors(theta: float, dims: int, table: Sequence[float]) -> tuple[float, ...]:
    """The frequencies divided by a table that comes with the model."""
    import numpy as np

    period = _periods(theta, dims)
    return _factors(np.float32(1) / period, np.float32(1) / (np.array(table, np.float32) * period))


def _periods(theta: float, dims: int) -> F32:
    """theta ** (2 i / dims), rounded to float32 as the op ``rope_table`` rounds it."""
    import numpy as np

    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    periods: F32 = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    return periods


def _frequencies(theta: float, dims: int) -> F32:
    import numpy as np

    frequencies: F32 = np.float32(1) / _periods(theta, dims)
    return frequencies


def _factors(plain: F32, bent: F32) -> tuple[float, ...]:
    """Divisors that make ``bent`` of ``plain``: rounding to float32 loses the error of a float64 quotient."""
    import numpy as np

    return tuple(float(factor) for factor in plain.astype(np.float64) / bent.astype(np.float64))
