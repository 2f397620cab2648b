"""What a runner gives, as the rows of a step's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.runtime.executor import Row, RowOutput

NOT_FINITE = "the logits are not finite: the model or its weights are damaged, or a value overflowed"


def token_rows(rows: Sequence[Row], tokens: Sequence[int]) -> tuple[RowOutput, ...]:
    """Rows that all want a token; a negative one is a failure."""
    return tuple(
        RowOutput(slot=row.slot, token=token) if token >= 0 else RowOutput(slot=row.slot, error=NOT_FINITE)
        for row, token in zip(rows, tokens)
    )


def output_rows(rows: Sequence[Row], out: Any) -> tuple[RowOutput, ...]:
    """``out`` is a runner's StepOutput."""
    tokens: list[int] = out.tokens.tolist()
    if out.logits is None and out.hidden is None:
        return tuple(
            RowOutput(slot=row.slot, token=token)
            if token >= 0
            else RowOutput(slot=row.slot, error=None if row.want == "nothing" else NOT_FINITE)
            for row, token in zip(rows, tokens)
        )
    failed: list[bool] = out.failed.tolist()
    logits = hidden = 0
    outputs = []
    for row, token, bad in zip(rows, tokens, failed):
        count = len(row.want_at) or 1
        if row.want in ("logits", "logprobs"):
            outputs.append(logits_row(row, out.logits[logits : logits + count], bad))
            logits += count
        elif row.want == "hidden":
            outputs.append(RowOutput(slot=row.slot, hidden=out.hidden[hidden : hidden + count]))
            hidden += count
        elif row.want == "nothing":
            outputs.append(RowOutput(slot=row.slot))
        else:
            outputs += token_rows([row], [token])
    return tuple(outputs)


def logits_row(row: Row, logits: NDArray[np.float32], bad: bool) -> RowOutput:
    """A row that wants its logits f32 [n, V], or their log softmax."""
    if bad:
        return RowOutput(slot=row.slot, error=NOT_FINITE)
    if row.want == "logits":
        return RowOutput(slot=row.slot, logits=logits)
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return RowOutput(slot=row.slot, logprobs=logprobs.astype(np.float32))
