"""What all requests that sample have: sampling, limits, and the part that only CacheIR knows."""

from __future__ import annotations

from typing import Any

from cacheir_server.schemas.field import Body, honoured, ignored
from cacheir_server.schemas.structured import StructuredOutputs


class CacheIRPart(Body):
    """``"cacheir": {...}``: what OpenAI's API has no word for."""

    priority: int = honoured(0, "Higher goes first among those that wait.", ge=-100, le=100)
    deadline_ms: float | None = honoured(None, "The answer ends with an error after so long.", gt=0, le=86_400_000)
    cache_salt: str = honoured("", "Requests with different salts never share a cached prefix.", max_length=256)
    reuse: bool = honoured(True, "Whether a cached prefix may be used.")
    sampler: str = honoured("", "A plugin's sampler, which picks the tokens.", max_length=256)
    logits_processors: list[str] = honoured([], "Plugins' changes of the logits, in their order.", max_length=16)
    provenance: bool = honoured(False, "Kernels, passes, plugins, and each token's step and KV pages, in the answer.")


class StreamOptions(Body):
    """``include_usage`` adds a last chunk with the usage and no choices."""

    include_usage: bool | None = honoured(None)
    include_obfuscation: bool | None = ignored("Chunks are never padded.")


class Sampled(Body):
    """The fields of sampling, with OpenAI's defaults and the further ones that vLLM and llama.cpp take too."""

    model: str = honoured(..., "The name that the server has for its model.", max_length=10_000)
    stream: bool | None = honoured(None)
    stream_options: StreamOptions | None = honoured(None)
    n: int | None = honoured(None, "How many answers.", ge=1)
    temperature: float | None = honoured(None, "0 is greedy; default 1.", ge=0, le=100)
    top_p: float | None = honoured(None, gt=0, le=1)
    top_k: int | None = honoured(None, "0 or -1 keeps all.", ge=-1)
    min_p: float | None = honoured(None, ge=0, le=1)
    typical_p: float | None = honoured(None, gt=0, le=1)
    repetition_penalty: float | None = honoured(None, gt=0, le=100)
    presence_penalty: float | None = honoured(None, ge=-2, le=2)
    frequency_penalty: float | None = honoured(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = honoured(None, "Token id to what is added to its logit, -100 to 100.")
    allowed_token_ids: list[int] | None = honoured(None)
    seed: int | None = honoured(None, ge=0, le=2**64 - 1)
    stop: str | list[str] | None = honoured(None, "Up to 16 strings that end the text before themselves.")
    stop_token_ids: list[int] | None = honoured(None)
    ignore_eos: bool | None = honoured(None)
    min_tokens: int | None = honoured(None, ge=0)
    structured_outputs: StructuredOutputs | None = honoured(None)
    cacheir: CacheIRPart | None = honoured(None)
    user: str | None = ignored("The server keeps no record of users.")
    metadata: dict[str, Any] | None = ignored("Nothing is stored.")
    store: bool | None = ignored("Nothing is stored.")
    service_tier: str | None = ignored("There is one.")
    safety_identifier: str | None = ignored("The server keeps no record of users.")
    prompt_cache_key: str | None = ignored("A cached prefix is found by its tokens.")
