"""A model's predictions on a text: for each scored token the log probabilities of the whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cacheir.errors import ModelError
from cacheir.quality.protocol import Protocol
from cacheir.runtime.executor import Row, Step
from cacheir.runtime.open_model import OpenModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


def answers(model: OpenModel, protocol: Protocol) -> Iterator[F32]:
    """For each window the log probabilities f32 [scored tokens of the window, V]; each is made when it is taken.

    Raises ModelError where logits are not finite.
    """
    for window in protocol.windows:
        yield _log_softmax(_logits(model, window))


def _logits(model: OpenModel, window: Sequence[int]) -> F32:
    """Logits f32 [window - window // 2, V] of the positions before the scored ones."""
    import numpy as np

    kv, executor = model.runner.kv, model.executor
    tables = kv.reserve(kv.empty(), 0, len(window))
    first, parts = len(window) // 2 - 1, []
    try:
        for start in range(0, len(window), model.runner.limits.chunk_tokens):
            tokens = tuple(window[start : start + model.runner.limits.chunk_tokens])
            wanted = tuple(i for i in range(len(tokens)) if first <= start + i < len(window) - 1)
            row = Row(
                slot=0,
                tokens=tokens,
                position=start,
                pages=tables,
                want="logits" if wanted else "nothing",
                want_at=wanted,
            )
            (output,) = executor.wait(executor.submit(Step(mode="prefill", rows=(row,)))).rows
            if output.error is not None:
                raise ModelError(f"the model cannot be scored: {output.error}")
            if output.logits is not None:
                parts.append(output.logits)
    finally:
        kv.cut(tables, 0)
    return np.concatenate(parts)


def _log_softmax(logits: F32) -> F32:
    """In place where the array is ours; sums in f64, since a vocabulary is long."""
    import numpy as np

    out = np.array(logits, np.float32)
    out -= out.max(axis=1, keepdims=True)
    for row in out:
        row -= np.float32(np.log(np.exp(row).sum(dtype=np.float64)))
    return out
