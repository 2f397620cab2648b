"""Logprobs in OpenAI's two shapes. All numbers are finite: what has no probability is ``FLOOR``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cacheir.runtime.engine.job import TokenLogprobs
from cacheir.runtime.tokenizer import Tokenizer

FLOOR = -9999.0


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The ``logprobs`` of a chat choice. ``bytes`` of all tokens joined are the text, split characters included."""
    content = []
    for entry in logprobs:
        content.append(
            {
                **_chat_entry(tokenizer, entry.token, entry.logprob),
                "top_logprobs": [_chat_entry(tokenizer, token, value) for token, value in entry.top],
            }
        )
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], start: int
) -> dict[str, Any]:
    """The ``logprobs`` of a completion choice for ``ids``; ``start`` is the first one's place in the text."""
    tokens = [_text(tokenizer, token) for token in ids]
    offsets, place = [], start
    for text in tokens:
        offsets.append(place)
        place += len(text)
    top: list[dict[str, float] | None] = []
    for entry in logprobs:
        # Two tokens may have the same text; the likelier one stands for it.
        best: dict[str, float] = {}
        for token, value in entry.top if entry is not None else ():
            best.setdefault(_text(tokenizer, token), finite(value))
        top.append(best if entry is not None else None)
    return {
        "tokens": tokens,
        "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in logprobs],
        "top_logprobs": top,
        "text_offset": offsets,
    }


def finite(value: float) -> float:
    """``value``, or ``FLOOR`` where it is less or no number."""
    return max(value, FLOOR) if math.isfinite(value) else FLOOR


def _chat_entry(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": _text(tokenizer, token), "logprob": finite(value), "bytes": list(raw)}


def _text(tokenizer: Tokenizer, token: int) -> str:
    raw = tokenizer.token_bytes(token)
    return raw.decode("utf-8", "replace") if raw else tokenizer.decode([token], skip_special=False)
