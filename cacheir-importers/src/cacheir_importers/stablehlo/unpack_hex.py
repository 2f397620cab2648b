"""The unpacker ``hex``: a weight that lies in a text file as hexadecimal digits."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import MalformedModelError
from cacheir_importers.stablehlo.constants import elements_of


def unpack_hex(digits: NDArray[np.uint8], *, dtype: str, shape: tuple[int, ...], skip: int) -> NDArray[Any]:
    """u8 [2 * nbytes] digits as an array; ``skip`` bytes at their beginning do not count."""
    try:
        raw = bytes.fromhex(digits.tobytes().decode("ascii"))
    except ValueError as error:
        raise MalformedModelError("the bytes of a constant hold what is no hexadecimal digit") from error
    if 2 * len(raw) != len(digits):  # spaces are passed over by fromhex
        raise MalformedModelError("the bytes of a constant hold what is no hexadecimal digit")
    return elements_of(raw[skip:], dtype, prod(shape)).reshape(shape)
