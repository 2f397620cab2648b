"""``/v1/responses``, ``/v1/embeddings``, ``/v1/cacheir/batch_completions`` and the contract."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.testing.fake_model import FakeExecutor, expected


def letters(history: list[int]) -> int:
    return 97 + (sum(history) * 7 + len(history)) % 26


@pytest.fixture
def server(make):
    return make(FakeExecutor(script=letters, max_tokens=64))


def test_a_response_is_the_chats_answer(server):
    chat = server.post(
        "/v1/chat/completions",
        messages=[{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
        max_tokens=6,
        temperature=0,
    ).json()
    body = {"instructions": "be", "input": "hi", "max_output_tokens": 6, "temperature": 0, "metadata": {"k": "v"}}
    found = server.post("/v1/responses", **body).json()
    assert found["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["usage"]["output_tokens"] == 6 and found["metadata"] == {"k": "v"}
    again = [
        {"role": "user", "content": "hi"},
        found["output"][0],
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
    ]
    assert server.post("/v1/responses", input=again, max_output_tokens=2).status_code == 200
    assert server.post("/v1/responses", input=[], max_output_tokens=2).status_code == 400
    assert server.post("/v1/responses", input="x", previous_response_id="resp-1").status_code == 400


def test_a_streamed_response_adds_up(server):
    body = {"input": "hi", "max_output_tokens": 6, "temperature": 0}
    whole = server.post("/v1/responses", **body).json()
    answer = server.post("/v1/responses", stream=True, **body)
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete"
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"] == events[-1]["response"]["output"][0]["content"][0]["text"]


def test_a_response_may_be_held_to_a_schema(make):
    server = make(FakeExecutor(max_tokens=64), max_seq=1024)
    form = {"type": "json_schema", "name": "x", "schema": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}}
    found = server.post("/v1/responses", input="x", text={"format": form}, max_output_tokens=200).json()
    assert set(json.loads(found["output"][0]["content"][0]["text"])) <= {1, 2}


def test_vectors_have_length_one_and_both_encodings_agree(server):
    plain = server.post("/v1/embeddings", input=["ab", "c", [1, 2, 3]]).json()
    packed = server.post("/v1/embeddings", input=["ab", "c", [1, 2, 3]], encoding_format="base64").json()
    assert plain["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    for number, (one, other) in enumerate(zip(plain["data"], packed["data"], strict=True)):
        assert one["index"] == number
        vector = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        np.testing.assert_array_equal(np.asarray(one["embedding"], np.float32), vector)
        assert abs(float((vector.astype(np.float64) ** 2).sum()) - 1) < 1e-6
    assert server.post("/v1/embeddings", input="a", dimensions=8).status_code == 200
    for bad in ({"input": []}, {"input": "a", "dimensions": 4}, {"input": ""}, {"input": [[-1]]}):
        assert server.post("/v1/embeddings", **bad).status_code == 400


def test_a_batch_is_taken_whole_or_not_at_all(make):
    limits = EngineLimits(max_batch=2, max_rows=2, max_tokens=16, chunk_tokens=16, max_queue=4)
    server = make(FakeExecutor(script=letters), engine={"limits": limits})
    one = {"model": "fake", "max_tokens": 3, "temperature": 0}
    requests = [{**one, "prompt": "ab", "n": 2}, {**one, "prompt": "c"}]
    found = server.client.post("/v1/cacheir/batch_completions", json={"requests": requests}).json()["data"]
    assert [len(each["choices"]) for each in found] == [2, 1]
    wanted = bytes(expected(server.executor, list(b"c"), 3)).decode()
    assert found[1]["choices"][0]["text"] == wanted
    many = [{**one, "prompt": f"p{n}"} for n in range(10)]
    assert server.client.post("/v1/cacheir/batch_completions", json={"requests": many}).status_code == 429
    bad = [*requests, {**one, "prompt": "x", "temperature": -1}]
    answer = server.client.post("/v1/cacheir/batch_completions", json={"requests": bad})
    assert answer.status_code == 400 and "requests.2.temperature" in answer.json()["error"]["param"]
    assert server.engine.idle


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_contract_is_kept_field_by_field(make_shared, data):
    """A field in no list is refused; one that is ignored changes nothing."""
    server = _shared(make_shared)
    contract = server.client.get("/v1/cacheir/contract").json()["routes"]
    path = data.draw(st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"]))
    base: dict[str, Any] = {
        "/v1/completions": {"prompt": "ab", "max_tokens": 3, "temperature": 0},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 3, "temperature": 0},
        "/v1/responses": {"input": "ab", "max_output_tokens": 3, "temperature": 0},
        "/v1/embeddings": {"input": "ab"},
    }[path]
    known = {*contract[path]["honoured"], *contract[path]["ignored"]}
    name = data.draw(
        st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12).filter(lambda name: name not in known)
    )
    refused = server.post(path, **{**base, name: data.draw(st.none() | st.booleans() | st.integers() | st.text())})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == name
    ignored = [field for field in contract[path]["ignored"] if "." not in field and field != "suffix"]
    field = data.draw(st.sampled_from(sorted(ignored)))
    value = {"metadata": {"a": "b"}, "store": True, "parallel_tool_calls": False}.get(field, "x")
    plain, told = server.post(path, **base).json(), server.post(path, **{**base, field: value}).json()
    for changing in ("id", "created", "created_at"):
        plain.pop(changing, None), told.pop(changing, None)
    if path == "/v1/responses":
        plain["output"][0].pop("id"), told["output"][0].pop("id")
    usage = [answer.pop("usage") for answer in (plain, told)]
    assert plain == told and usage[0].get("total_tokens") == usage[1].get("total_tokens")


_SERVERS: list[Any] = []


def _shared(make_shared: Any) -> Any:
    if not _SERVERS:
        _SERVERS.append(make_shared(FakeExecutor(script=letters, max_tokens=64)))
    return _SERVERS[0]
