"""OpenAI's own Python client against ``cacheir serve``: its calls for each route, unchanged."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest

from cacheir import Runtime

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@pytest.fixture(scope="module")
def client(served: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused")


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_is_what_the_runtime_says(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=12, temperature=0)
    with Runtime("smollm2", max_seq=1024) as runtime:
        wanted = "".join(runtime.chat(QUESTION, 12))
    assert found.choices[0].message.content == wanted
    assert found.usage is not None and found.usage.completion_tokens <= 12


def test_a_streamed_chat_with_usage_and_logprobs(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=3,
    )
    text, usage, logprobs = "", None, []
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            logprobs += choice.logprobs.content or [] if choice.logprobs else []
    assert text and usage is not None
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs).decode() == text
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in logprobs)


def test_completions_with_n_and_a_seed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "prompt": ["Once", "The sea"], "max_tokens": 6, "n": 2, "seed": 7}
    first, second = client.completions.create(**asked), client.completions.create(**asked)
    assert [choice.text for choice in first.choices] == [choice.text for choice in second.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]


def test_a_streamed_completion_with_the_prompts_logprobs(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4}
    asked |= {"temperature": 0, "echo": True, "logprobs": 1}
    whole = client.completions.create(**asked).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    told = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    assert whole.logprobs is not None
    assert [token for each in told for token in each.tokens or []] == whole.logprobs.tokens
    assert len(told) == 4 and len(told[0].tokens or []) == 6


def test_embeddings_of_like_texts_are_nearer(client: openai.OpenAI) -> None:
    texts = ["A cat sat on the mat.", "A kitten sat on the rug.", "Interest rates rose by two percent."]
    vectors = [entry.embedding for entry in client.embeddings.create(model="smollm2", input=texts).data]
    assert all(math.isclose(sum(value * value for value in vector), 1, abs_tol=1e-5) for vector in vectors)

    def likeness(one: int, other: int) -> float:
        return sum(a * b for a, b in zip(vectors[one], vectors[other]))

    assert likeness(0, 1) > likeness(0, 2)


def test_responses_whole_and_streamed(client: openai.OpenAI) -> None:
    found = client.responses.create(model="smollm2", input="Name a colour.", max_output_tokens=8, temperature=0)
    with client.responses.stream(model="smollm2", input="Name a colour.", max_output_tokens=8, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == found.output_text != ""


def test_a_form_is_kept_by_a_real_model(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    found = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        max_tokens=80,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )
    value = json.loads(found.choices[0].message.content or "")
    assert set(value) == {"city", "big"} and isinstance(value["big"], bool)


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="context holds 1024"):
        client.completions.create(model="smollm2", prompt="word " * 5000)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4o", prompt="a")
