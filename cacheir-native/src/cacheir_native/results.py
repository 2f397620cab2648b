"""What a runner gives, as the rows of a step's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cacheir.runtime.executor import Row, RowOutput
from cacheir.runtime.row_outputs import logits_output, token_output


def token_rows(rows: Sequence[Row], tokens: Sequence[int]) -> tuple[RowOutput, ...]:
    """Rows that all want a token; a negative one is a failure."""
    return tuple(map(token_output, rows, tokens))


def output_rows(rows: Sequence[Row], out: Any) -> tuple[RowOutput, ...]:
    """``out`` is a runner's StepOutput."""
    tokens: list[int] = out.tokens.tolist()
    if out.logits is None and out.hidden is None:
        return tuple(
            RowOutput(slot=row.slot) if row.want == "nothing" and token < 0 else token_output(row, token)
            for row, token in zip(rows, tokens)
        )
    failed: list[bool] = out.failed.tolist()
    logits = hidden = 0
    outputs = []
    for row, token, bad in zip(rows, tokens, failed):
        count = len(row.want_at) or 1
        if row.want in ("logits", "logprobs"):
            outputs.append(logits_output(row, out.logits[logits : logits + count], finite=not bad))
            logits += count
        elif row.want == "hidden":
            outputs.append(RowOutput(slot=row.slot, hidden=out.hidden[hidden : hidden + count]))
            hidden += count
        elif row.want == "nothing":
            outputs.append(RowOutput(slot=row.slot))
        else:
            outputs.append(token_output(row, token))
    return tuple(outputs)
