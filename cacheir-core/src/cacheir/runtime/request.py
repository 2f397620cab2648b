"""What a request may ask of a model: the checks between a prompt and the first step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cacheir.errors import RequestError, RequestTooLong
from cacheir.quick_dataclass import dataclass
from cacheir.runtime.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What the loaded model takes: its context in tokens (the KV pool may hold less than the model could), its ids."""

    max_seq: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()


def check_ids(ids: Sequence[Any], vocab_size: int) -> list[int]:
    """``ids`` as plain integers; ``RequestError`` with index and value for what is no id of the model.

    Ids below 0 must never reach an embedding: NumPy would take the row from the end without a word.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
        raise RequestError(f"token ids must be a list of integers, not {type(ids).__name__}")
    if set(map(type, ids)) == {int} and 0 <= min(ids) <= max(ids) < vocab_size:
        return list(ids)  # as nearly always, at a tenth of the time
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int):
            raise RequestError(f"token id {index} of the prompt is {token!r}, which is no integer")
        if not 0 <= token < vocab_size:
            raise RequestError(f"token id {index} of the prompt is {token}; this model has 0 to {vocab_size - 1}")
    return list(ids)


def check_length(tokens: int, max_seq: int) -> None:
    """``RequestTooLong``, with both numbers, where ``tokens`` leave no room for one more."""
    if tokens >= max_seq:
        raise RequestTooLong(
            f"the prompt has {tokens} tokens and the context holds {max_seq}, of which the answer needs at least one",
            hint="shorten the prompt, or open the model with a larger max_seq",
        )


def admit(prompt_tokens: int, sampling: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """The sampling that the executor gets, with nothing left open, or a ``RequestError``.

    ``max_tokens`` is set, and no larger than the rest of the context (an answer that gets there ends with
    ``length``); ``seed`` is set; ``stop_ids`` hold the model's ending ids as well, unless ``ignore_eos``.
    """
    if prompt_tokens == 0:
        raise RequestError(
            "the prompt is empty and this model has no token that begins a text, so there is nothing to continue",
            hint="give a prompt of at least one token",
        )
    check_length(prompt_tokens, limits.max_seq)
    for name, ids in (("logit_bias", [i for i, _ in sampling.logit_bias]), ("allowed_ids", sampling.allowed_ids or ())):
        bad = next((token for token in ids if token >= limits.vocab_size), None)
        if bad is not None:
            raise RequestError(f"{name} names token id {bad}; this model has 0 to {limits.vocab_size - 1}")
    room = limits.max_seq - prompt_tokens
    stop_ids = sampling.stop_ids if sampling.ignore_eos else tuple(sorted({*sampling.stop_ids, *limits.eos_ids}))
    if sampling.min_tokens:
        allowed = range(limits.vocab_size) if sampling.allowed_ids is None else sampling.allowed_ids
        if set(stop_ids).issuperset(allowed):
            raise RequestError(
                "min_tokens bars the tokens that end an answer, and no other may be picked", hint="leave min_tokens out"
            )
    most = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    if sampling.min_tokens > most:
        raise RequestError(f"min_tokens must be from 0 to {most}, not {sampling.min_tokens}")
    if sampling.seed is not None and sampling.max_tokens == most and sampling.stop_ids == stop_ids:
        return sampling  # it was admitted before
    seed = int.from_bytes(os.urandom(8), "little") >> 1 if sampling.seed is None else sampling.seed
    return sampling.admitted(max_tokens=most, seed=seed, stop_ids=stop_ids)
