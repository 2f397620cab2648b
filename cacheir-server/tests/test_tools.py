"""Tools through the server: calls read, streamed and demanded; what a model cannot be told of is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from cacheir.testing.fake_model import FakeExecutor

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer", "minimum": 0, "maximum": 99},
                    "s": {"type": "string", "maxLength": 4},
                },
                "required": ["n"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("first", "second")
]
SAID = 'Hm. <tool_call>\n{"name": "first", "arguments": {"n": 5, "s": "a\\"b"}}\n</tool_call>'


def saying(text: str) -> Any:
    """A model that writes ``text`` after the last control token, and ends."""
    raw = text.encode()

    def script(history: list[int]) -> int:
        start = len(history) - history[::-1].index(258) + len("assistant\n")
        place = len(history) - start
        return raw[place] if place < len(raw) else 257

    return FakeExecutor(script=script, max_tokens=64)


def ask(server: Any, **body: Any) -> Any:
    fields = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 600,
        **body,
    }
    return server.post("/v1/chat/completions", **fields)


@pytest.fixture
def server(make):
    return make(saying(SAID), template=TEMPLATE, max_seq=2048)


def test_a_call_is_read_out_of_the_text(server):
    choice = ask(server).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Hm. "
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call-")
    assert call["function"]["name"] == "first"
    assert json.loads(call["function"]["arguments"]) == {"n": 5, "s": 'a"b'}


def test_a_streamed_call_adds_up_to_the_same(server):
    whole = ask(server).json()["choices"][0]["message"]
    lines = ask(server, stream=True).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["content"]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert pieces[0]["function"]["name"] == "first" and all(piece["index"] == 0 for piece in pieces)
    assert (
        "".join(piece["function"]["arguments"] for piece in pieces) == whole["tool_calls"][0]["function"]["arguments"]
    )
    assert len(pieces) > 5
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "second"}}])
def test_a_demanded_call_is_one_whatever_the_model_would_say(make, choice):
    server = make(FakeExecutor(max_tokens=64), template=TEMPLATE, max_seq=4096)
    for seed in range(12):
        found = ask(server, tool_choice=choice, temperature=1.3, seed=seed, max_tokens=900).json()["choices"][0]
        assert found["finish_reason"] == "tool_calls", found
        (call,) = found["message"]["tool_calls"]
        assert call["function"]["name"] in ("first", "second")
        assert choice == "required" or call["function"]["name"] == "second"
        jsonschema.validate(json.loads(call["function"]["arguments"]), TOOLS[0]["function"]["parameters"])


def test_none_means_that_the_model_is_not_told(server):
    choice = ask(server, tool_choice="none").json()["choices"][0]
    assert choice["message"]["content"] == SAID and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_what_cannot_be_is_refused(make, server):
    plain = make()
    answer = ask(plain)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools"
    for body, word in (
        ({"tool_choice": {"type": "function", "function": {"name": "third"}}}, "third"),
        ({"tools": None, "tool_choice": "required"}, "needs tools"),
        ({"tools": [{"type": "function", "function": {"name": "bad name"}}]}, "name"),
        ({"tools": [{"type": "retrieval"}]}, "type"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "only one form"),
    ):
        answer = ask(server, **body)
        assert answer.status_code == 400 and word in answer.json()["error"]["message"], answer.text
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "array", "uniqueItems": True}}}
    answer = ask(server, tools=[tool], tool_choice="required")
    assert answer.status_code == 400 and "/uniqueItems" in answer.json()["error"]["message"]


def test_the_round_trip_of_a_tools_answer_is_told_to_the_template(server):
    call = {"id": "call-1", "type": "function", "function": {"name": "first", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "42"},
    ]
    assert ask(server, messages=messages).status_code == 200
