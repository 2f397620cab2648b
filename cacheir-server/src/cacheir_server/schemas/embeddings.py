"""``POST /v1/embeddings``."""

from __future__ import annotations

from typing import Literal

from cacheir_server.schemas.field import Body, honoured, ignored


class EmbeddingBody(Body):
    """Texts, or token ids, to vectors."""

    model: str = honoured(..., max_length=10_000)
    input: str | list[int] | list[str | list[int]] = honoured(...)
    encoding_format: Literal["float", "base64"] | None = honoured(None, "base64 is of little-endian float32.")
    dimensions: int | None = honoured(None, "Must be the model's own.", ge=1)
    user: str | None = ignored("The server keeps no record of users.")
