"""Samplers and logits processors of plugins, named by a request."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cacheir.plugins import LogitsProcessorSpec, SamplerSpec, hookimpl
from cacheir.runtime.host_sampling import open_sampler
from cacheir.testing import plugin_host

PLUGIN = "cacheir_test_request_plugins"
ONLY = 65


def only_one(params: Any) -> Any:
    """Nothing but the id ``ONLY``."""
    return lambda ids, logits: np.where(np.arange(len(logits)) == ONLY, logits, -np.inf)


def raises(params: Any) -> Any:
    def change(ids: Any, logits: Any) -> Any:
        raise LookupError("no table")

    return change


@pytest.fixture
def bench(make: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType(PLUGIN)

    @hookimpl
    def cacheir_register_samplers() -> Any:
        yield SamplerSpec(name="next-one", summary="", factory=lambda params: lambda logits: [ONLY + 1])

    @hookimpl
    def cacheir_register_logits_processors() -> Any:
        yield LogitsProcessorSpec(name="only-one", summary="", factory=only_one)
        yield LogitsProcessorSpec(name="raises", summary="", factory=raises)

    module.cacheir_register_samplers = cacheir_register_samplers  # type: ignore[attr-defined]
    module.cacheir_register_logits_processors = cacheir_register_logits_processors  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PLUGIN, module)
    installation = plugin_host(PLUGIN)
    monkeypatch.setattr("cacheir_server.sampling_fields.default", lambda: installation)
    return make(make_sampler=lambda params: open_sampler(params, installation))


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 4, "ignore_eos": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "ignore_eos": True},
    "/v1/responses": {"input": "abc", "max_output_tokens": 4},
}


def text_of(answer: Any) -> str:
    body = answer.json()
    if "output" in body:
        return str(body["output"][0]["content"][0]["text"])
    choice = body["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize("route", ROUTES)
def test_tokens_come_from_what_the_request_names(bench: Any, route: str) -> None:
    (only,), (following,) = (bench.model.tokenizer.decode([one]) for one in (ONLY, ONLY + 1))
    changed = bench.post(route, cacheir={"logits_processors": ["only-one"]}, **ROUTES[route])
    assert changed.status_code == 200 and text_of(changed) == only * 4
    picked = bench.post(route, cacheir={"sampler": "next-one"}, **ROUTES[route])
    assert picked.status_code == 200 and text_of(picked) == following * 4


@pytest.mark.parametrize("route", ROUTES)
def test_what_nobody_registers_is_the_requests_fault(bench: Any, route: str) -> None:
    for field, value in (("sampler", "nxt-one"), ("logits_processors", ["only-one", "other"])):
        answer = bench.post(route, cacheir={field: value}, **ROUTES[route])
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, f"cacheir.{field}")
        assert "nxt-one" in error["message"] or "other" in error["message"]


def test_a_processor_that_fails_costs_its_request_alone(bench: Any) -> None:
    body = ROUTES["/v1/completions"]
    failed = bench.post("/v1/completions", cacheir={"logits_processors": ["raises"]}, **body)
    assert (
        failed.status_code == 500
        and "logits processor 'raises' raised LookupError" in failed.json()["error"]["message"]
    )
    assert bench.post("/v1/completions", **body).status_code == 200
