"""``POST /v1/embeddings``: the last hidden state of each text, at length 1."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.sampling import SamplingParams
from cacheir_server.body import read_body
from cacheir_server.choice import collect, finish_reason
from cacheir_server.errors import ApiError
from cacheir_server.routes.completions import prompts_of
from cacheir_server.schemas.embeddings import EmbeddingBody
from cacheir_server.service import Service, new_id


async def embeddings(request: Request, service: Service) -> Response:
    """A vector for each input: what the model made of its last token, divided by its Euclidean length."""
    body = await read_body(request, EmbeddingBody)
    service.check_model(body.model)
    if "hidden" not in service.runtime.model.executor.capabilities().heads:
        raise ApiError(400, "the backend gives no hidden states", param="model", code="unsupported_field")
    spec = service.runtime.model.program.spec
    if spec is not None and body.dimensions not in (None, spec.hidden):
        message = f"this model's vectors have {spec.hidden} dimensions, not {body.dimensions}"
        raise ApiError(400, message, param="dimensions", code="invalid_value")
    prompts = await prompts_of(service, body.input, "input")
    name = new_id("embd")
    greedy = SamplingParams(max_tokens=1)
    jobs = [
        Job(id=f"{name}-{number}", ids=tuple(ids), sampling=service.admit(ids, greedy), want="hidden")
        for number, ids in enumerate(prompts)
    ]
    found = await collect(request, await service.start(jobs), _Vector)
    data = await asyncio.to_thread(_data, found, body.encoding_format == "base64")
    tokens = sum(len(ids) for ids in prompts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": service.settings.model_name, "usage": usage})


class _Vector:
    """The hidden state of one text, once its event has come."""

    def __init__(self) -> None:
        self.values: Any = None

    def take(self, event: Event) -> None:
        if event.outcome is not None:
            finish_reason(event)
            self.values = event.hidden


def _data(vectors: list[_Vector], packed: bool) -> list[dict[str, Any]]:
    import numpy as np

    data = []
    for number, vector in enumerate(vectors):
        values = np.asarray(vector.values, np.float64)
        length = float(np.sqrt((values * values).sum()))
        unit = (values / length if length else values).astype("<f4")
        shown: Any = base64.b64encode(unit.tobytes()).decode() if packed else unit.tolist()
        data.append({"object": "embedding", "index": number, "embedding": shown})
    return data
