"""Several choices of one request: their indices, reasons and usage, whole and streamed, and the limit on them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cacheir.testing.fake_model import FakeExecutor

PATH = "/v1/completions"


def choices_of_stream(answer: Any) -> tuple[dict[int, str], dict[int, list[str]], dict[str, Any]]:
    """Text and reasons by index, and the usage of the last chunk."""
    texts: dict[int, str] = {}
    reasons: dict[int, list[str]] = {}
    usage: dict[str, Any] = {}
    for line in answer.text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if choice["finish_reason"]:
                reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    return texts, reasons, usage


@pytest.mark.parametrize("prompts", [["ab"], ["ab", "xyz"]])
def test_case_d17_each_choice_has_its_index_its_reason_and_its_tokens(make, prompts):
    count = 3 * len(prompts)
    body = {"prompt": prompts, "n": 3, "temperature": 1, "max_tokens": 12, "seed": 3, "logprobs": 1}
    server = make()
    whole = server.post(PATH, **body).json()
    assert [choice["index"] for choice in whole["choices"]] == list(range(count))
    assert whole["usage"]["prompt_tokens"] == sum(map(len, prompts))
    tokens = [len(choice["logprobs"]["tokens"]) for choice in whole["choices"]]
    assert sum(tokens) <= whole["usage"]["completion_tokens"] <= sum(tokens) + count  # an ending token has no text
    streamed = server.post(PATH, **body, stream=True, stream_options={"include_usage": True})
    texts, reasons, usage = choices_of_stream(streamed)
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert reasons == {choice["index"]: [choice["finish_reason"]] for choice in whole["choices"]}
    for name in ("prompt_tokens", "completion_tokens"):
        assert usage[name] == whole["usage"][name]


def test_case_d17_a_choice_that_stops_early_is_counted_as_it_is(make):
    """The stop string ends some choices before the others; each keeps its own reason, and usage is their sum."""
    server = make()
    body = {"prompt": "ab", "n": 4, "temperature": 1, "max_tokens": 10, "seed": 11, "logprobs": 1}
    free = server.post(PATH, **body).json()["choices"]
    stop = next(
        token
        for choice in free
        for token in choice["text"][1:-1]
        if token.isascii() and sum(token in other["text"] for other in free) < len(free)
    )
    answer = server.post(PATH, **body, stop=stop).json()
    for before, after in zip(free, answer["choices"]):
        assert after["finish_reason"] == ("stop" if stop in before["text"] else before["finish_reason"])
        assert after["text"] == before["text"].split(stop)[0]
    assert {"stop", "length"} <= {choice["finish_reason"] for choice in answer["choices"]}
    assert answer["usage"]["completion_tokens"] < 4 * 10


def test_case_d17_greedy_choices_are_alike_and_too_many_are_refused(make):
    server = make(FakeExecutor(max_tokens=64))
    greedy = server.post(PATH, prompt="ab", n=3, temperature=0, max_tokens=4).json()
    assert len({choice["text"] for choice in greedy["choices"]}) == 1
    assert greedy["usage"]["completion_tokens"] == 12
    for bad in (0, 1_000_000):
        refused = server.post(PATH, prompt="ab", n=bad, max_tokens=1)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "n"
    assert server.post(PATH, prompt="ab", n=2, max_tokens=1).status_code == 200
