"""OpenAI's own client with tools, whole and streamed, over a model that always writes the same call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

from cacheir.runtime.engine.engine import Engine, default_limits
from cacheir.testing.fake_model import FakeExecutor, open_fake
from cacheir.testing.fake_runtime import FakeRuntime
from cacheir_server.app import create_app
from cacheir_server.service import Service
from cacheir_server.settings import ServerSettings

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAID = b'Wait. <tool_call>\n{"name": "weather", "arguments": {"city": "Par\\"is", "days": 3}}\n</tool_call>'
MEANT = {"city": 'Par"is', "days": 3}
START, END = 258, 257  # ids of the fake tokenizer
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASKED: dict[str, Any] = {
    "model": "fake",
    "messages": [{"role": "user", "content": "What is the weather?"}],
    "tools": [WEATHER],
    "temperature": 0,
    "max_tokens": 300,
}


def says(history: list[int]) -> int:
    place = history[::-1].index(START) - len("assistant\n")
    return SAID[place] if place < len(SAID) else END


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    model = open_fake(FakeExecutor(script=says, max_tokens=64), chat_template=TEMPLATE, max_seq=2048)
    service = Service(FakeRuntime(model), ServerSettings(model_name="fake"), Engine(model, default_limits(model)))
    with TestClient(create_app(service)) as server:
        yield openai.OpenAI(base_url="http://testserver/v1", api_key="unused", http_client=server)
    service.close()


def test_a_call_whole_and_streamed(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ASKED).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Wait. ")
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and (call.function.name, json.loads(call.function.arguments)) == ("weather", MEANT)
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**ASKED, stream=True)]
    parts = [part for chunk in chunks for part in chunk.delta.tool_calls or []]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Wait. "
    assert [part.function.name for part in parts if part.function and part.function.name] == ["weather"]
    arguments = [part.function.arguments or "" for part in parts if part.function]
    assert "".join(arguments) == call.function.arguments and len(arguments) > 2
    assert chunks[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_demanded_call_by_the_clients_own_stream(client: openai.OpenAI, choice: Any) -> None:
    asked = {**ASKED, "tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]}
    with client.chat.completions.stream(**asked, tool_choice=choice) as stream:
        (found,) = stream.get_final_completion().choices
    (call,) = found.message.tool_calls or []
    assert call.function.name == "weather" and set(json.loads(call.function.arguments)) >= {"city"}


def test_none_and_the_answer_of_a_tool(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ASKED, tool_choice="none").choices
    assert not choice.message.tool_calls and (choice.message.content or "").startswith("Wait. <tool_call>")
    (call,) = client.chat.completions.create(**ASKED).choices[0].message.tool_calls or []
    answered = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    assert client.chat.completions.create(**{**ASKED, "messages": answered}).choices[0].message.tool_calls
