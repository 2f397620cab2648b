"""``POST /v1/cacheir/batch_completions``."""

from __future__ import annotations

from cacheir_server.schemas.completions import CompletionBody
from cacheir_server.schemas.field import Body, honoured


class BatchBody(Body):
    """Several requests of ``/v1/completions``, none of them streamed; all are taken or none."""

    requests: list[CompletionBody] = honoured(..., min_length=1, max_length=256)
