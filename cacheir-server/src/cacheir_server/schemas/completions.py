"""``POST /v1/completions``: a prompt, or several, as text or token ids."""

from __future__ import annotations

from cacheir_server.schemas.field import honoured, ignored
from cacheir_server.schemas.sampled import Sampled


class CompletionBody(Sampled):
    """OpenAI's completions request; ``best_of`` must equal ``n`` where it is given."""

    prompt: str | list[int] | list[str | list[int]] = honoured(...)
    max_tokens: int | None = honoured(None, "Default 16; 0 only with echo.", ge=0)
    logprobs: int | None = honoured(None, "So many of the likeliest tokens.", ge=0, le=20)
    echo: bool | None = honoured(None)
    best_of: int | None = honoured(None, "Must equal n.", ge=1)
    suffix: None = ignored("Only null: text cannot be filled in.")
