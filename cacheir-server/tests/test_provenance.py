"""``"cacheir": {"provenance": true}`` on every route that answers, streamed or not; nothing where it is not asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cacheir.testing.fake_model import FakeExecutor, expected

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "/v1/completions": {"prompt": "abc", "max_tokens": 6},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 6},
        "/v1/responses": {"input": "abc", "max_output_tokens": 6},
    }[path]
    return {**asked, "temperature": 0, **fields}


def chunks_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.fixture
def server(make):
    return make(FakeExecutor(script=lambda history: 97 + len(history) % 26))


@pytest.mark.parametrize("path", PATHS)
def test_it_is_in_the_answer_where_asked_for_and_nowhere_else(server, path):
    assert "cacheir" not in server.post(path, **body_of(path)).json()
    assert "cacheir" not in server.post(path, **body_of(path), cacheir={"provenance": False}).json()
    found = server.post(path, **body_of(path), cacheir={"provenance": True}).json()["cacheir"]["provenance"]
    assert found["program_key"] == "fake" and found["kernels"] == []  # the fake has no schedules
    assert [(row["name"], row["runs"], row["changed"]) for row in found["passes"]] == [("drop", 2, 1)]
    assert [plugin["name"] for plugin in found["plugins"]] == ["core"]
    (choice,) = found["choices"]
    assert choice["index"] == 0 and len(choice["tokens"]) == 6
    assert {one["page_table"] for one in choice["tokens"]} == set(range(len(choice["page_tables"])))


@pytest.mark.parametrize("streamed", [False, True])
def test_the_token_that_a_scored_prompt_hides_is_in_no_ledger(server, streamed):
    asked = {"prompt": "abcdef", "max_tokens": 0, "echo": True, "logprobs": 1, "cacheir": {"provenance": True}}
    answer = server.post("/v1/completions", **asked, stream=streamed)
    found = chunks_of(answer.text)[-1] if streamed else answer.json()
    (choice,) = found["cacheir"]["provenance"]["choices"]
    assert choice == {"index": 0, "tokens": [], "page_tables": []}
    assert found["cacheir"]["provenance"]["passes"]


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_tells_the_same_tokens_at_its_end(server, path):
    body = body_of(path, cacheir={"provenance": True, "reuse": False})
    whole = server.post(path, **body).json()["cacheir"]["provenance"]
    chunks = chunks_of(server.post(path, **body, stream=True).text)
    told = [each for each in chunks if "cacheir" in each or "cacheir" in each.get("response", {})]
    assert told == chunks[-1:]
    found = told[0].get("response", told[0])["cacheir"]["provenance"]
    assert found["passes"] == whole["passes"]

    def places(provenance: dict[str, Any]) -> list[tuple[int, int]]:
        return [(one["id"], one["position"]) for one in provenance["choices"][0]["tokens"]]

    assert places(found) == places(whole)
    plain = chunks_of(server.post(path, **{**body, "cacheir": {}}, stream=True).text)
    assert not any("cacheir" in each or "cacheir" in each.get("response", {}) for each in plain)


@pytest.mark.parametrize("path", PATHS[:2])
def test_the_usage_stays_the_last_chunk(server, path):
    body = body_of(path, cacheir={"provenance": True}, stream=True, stream_options={"include_usage": True}, n=2)
    chunks = chunks_of(server.post(path, **body).text)
    assert chunks[-1]["usage"] and chunks[-2]["usage"] is None and chunks[-2]["choices"] == []
    choices = chunks[-2]["cacheir"]["provenance"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1] and all(len(choice["tokens"]) == 6 for choice in choices)


def test_tokens_are_the_models_at_their_places(server):
    answer = server.post("/v1/completions", prompt="abc", max_tokens=5, temperature=0, cacheir={"provenance": True})
    tokens = answer.json()["cacheir"]["provenance"]["choices"][0]["tokens"]
    assert [one["id"] for one in tokens] == expected(server.executor, list(b"abc"), 5)
    assert [one["position"] for one in tokens] == [3, 4, 5, 6, 7]


def test_the_contract_lists_it(server):
    routes = server.client.get("/v1/cacheir/contract").json()["routes"]
    for path in PATHS:
        assert "cacheir.provenance" in routes[path]["honoured"]
        assert server.post(path, **body_of(path, cacheir={"provenance": 1})).status_code == 400


def test_a_response_has_a_deadline_too(make):
    executor = FakeExecutor(run_ahead=False, script=lambda history: 98)
    server = make(executor, max_seq=4096, kv_tokens=9000)
    answer = server.post("/v1/responses", input="a", max_output_tokens=4000, cacheir={"deadline_ms": 1})
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline"
