"""Packed vocabulary masks: one bit for each id, set where the id may be sampled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np


def known_ids_mask(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray | None:
    """The mask of the ids that ``tokenizer`` knows, None where it knows all ``vocab_size``.

    A model's vocabulary is often padded to a round number; such an id has no text and was never trained, and sampling
    one would put a hole into the answer. Ids are asked one by one: a tokenizer may leave gaps below its highest id.
    """
    if tokenizer.vocab_size >= vocab_size:
        return None
    known = (token for token in range(vocab_size) if token in tokenizer.special_ids or tokenizer.token_bytes(token))
    return packed_mask(known, vocab_size)


def allows(mask: np.ndarray, token: int) -> bool:
    """Whether ``mask`` has the bit of ``token``."""
    return bool(int(mask[token // 32]) >> token % 32 & 1)


def packed_mask(allowed: Iterable[int], vocab_size: int) -> np.ndarray:
    """u32 [ceil(V / 32)]: bit ``i % 32`` of word ``i // 32`` is set where id ``i`` is in ``allowed``."""
    import numpy as np

    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
