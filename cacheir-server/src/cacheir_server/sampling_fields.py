"""From the fields of a request to what the engine takes; a field that is null has OpenAI's default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cacheir.errors import UsageError
from cacheir.plugins.installation import default
from cacheir.plugins.registry import Registry
from cacheir.runtime.sampling import SamplingParams
from cacheir_server.errors import ApiError
from cacheir_server.schemas.sampled import CacheIRPart, Sampled

_DIRECT = (
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
    "min_tokens",
)


def sampling_of(body: Sampled, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    """The sampling that ``body`` asks for; ``RequestError`` or ``ApiError`` for what cannot be."""
    given: dict[str, Any] = {name: getattr(body, name) for name in _DIRECT if getattr(body, name) is not None}
    given["temperature"] = 1.0 if body.temperature is None else body.temperature
    given["top_k"] = max(body.top_k or 0, 0)
    if body.stop is not None:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.stop_token_ids is not None:
        given["stop_ids"] = tuple(body.stop_token_ids)
    if body.allowed_token_ids is not None:
        given["allowed_ids"] = tuple(body.allowed_token_ids)
    if body.logit_bias is not None:
        given["logit_bias"] = _bias(body.logit_bias)
    return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **given, **plugins_of(body.cacheir))


def plugins_of(part: CacheIRPart | None) -> dict[str, Any]:
    """The fields of ``SamplingParams`` that name plugins' parts; 400 for a name that no plugin here registers."""
    if part is None:
        return {}
    installed, processors = default(), tuple(part.logits_processors)
    _check_names("sampler", installed.samplers, (part.sampler,) if part.sampler else ())
    _check_names("logits_processors", installed.logits_processors, processors)
    return {"sampler": part.sampler, "logits_processors": processors}


def choice_sampling(sampling: SamplingParams, choice: int) -> SamplingParams:
    """The sampling of one of several choices: each has a seed of its own, so that seeded requests repeat."""
    if choice == 0 or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % 2**64)


def choices(body: Sampled, most: int) -> int:
    """How many answers ``body`` asks for; 400 above ``most``."""
    count = body.n or 1
    if count > most:
        raise ApiError(400, f"n must be at most {most}, not {count}", param="n", code="invalid_value")
    return count


def _check_names(field: str, registry: Registry[Any], names: Sequence[str]) -> None:
    for name in names:
        try:
            registry[name]
        except UsageError as error:
            raise ApiError(400, str(error), param=f"cacheir.{field}", code="invalid_value") from None


def _bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    pairs = []
    for name, amount in given.items():
        if not name.isascii() or not name.isdigit() or len(name) > 10:
            message = f"logit_bias maps token ids to numbers, and {name[:40]!r} is no token id"
            raise ApiError(400, message, param="logit_bias", code="invalid_value")
        pairs.append((int(name), amount))
    return tuple(pairs)
