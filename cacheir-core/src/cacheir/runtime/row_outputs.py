"""Which head a row of a step needs, and its result as what the row wanted: for every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.runtime.executor import Row, RowOutput
from cacheir.runtime.slots import Slots

# What the four heads can give; logprobs are worked out from the logits.
WANTED = ("nothing", "token", "logprobs", "logits", "hidden")
NOT_FINITE = "the logits are not finite: the model or its weights are damaged, or a value overflowed"


def head_of(row: Row, slots: Slots) -> str:
    """The least head that serves ``row``, which wants something."""
    if row.want == "hidden":
        return "head.hidden"
    if row.want in ("logits", "logprobs"):
        return "head.logits"
    sampling = slots.of(row).sampling
    return "head.greedy" if row.mask is None and (sampling is None or sampling.greedy) else "head.sampled"


def row_output(row: Row, head: str, result: NDArray[Any], slots: Slots) -> RowOutput:
    """One row's result of ``head`` [n, ...] on the host; the slot keeps its token."""
    if head in ("head.greedy", "head.sampled"):
        output = token_output(row, int(result[-1]))
        if output.token is not None:
            slots.of(row).last_token = output.token
        return output
    if head == "head.hidden":
        return RowOutput(slot=row.slot, hidden=result)
    return logits_output(row, result, finite=bool(np.isfinite(result).all()))


def token_output(row: Row, token: int) -> RowOutput:
    """A row that wants its token; a negative one says that the logits were not finite."""
    return RowOutput(slot=row.slot, token=token) if token >= 0 else RowOutput(slot=row.slot, error=NOT_FINITE)


def logits_output(row: Row, logits: NDArray[np.float32], *, finite: bool) -> RowOutput:
    """A row that wants its logits f32 [n, V], or their log softmax."""
    if not finite:
        return RowOutput(slot=row.slot, error=NOT_FINITE)
    if row.want == "logits":
        return RowOutput(slot=row.slot, logits=logits)
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return RowOutput(slot=row.slot, logprobs=logprobs.astype(np.float32))
