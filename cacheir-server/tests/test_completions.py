"""``/v1/completions`` and ``/v1/chat/completions``: tokens, choices, usage, streams, logprobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cacheir.testing.fake_model import FakeExecutor, expected


def text_of(ids: list[int]) -> str:
    return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


def letters(history: list[int]) -> int:
    """The next letter of the alphabet, in circles."""
    return 97 + (sum(history) * 7 + len(history)) % 26


def stream(answer: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end with [DONE] and hold strict JSON."""
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line.removeprefix("data: "), parse_constant=refuse) for line in lines[:-2]]


@pytest.fixture
def server(make):
    return make(FakeExecutor(script=letters))


def test_greedy_text_is_the_models_and_usage_adds_up(server):
    answer = server.post("/v1/completions", prompt="abc", max_tokens=6, temperature=0).json()
    wanted = expected(server.executor, list(b"abc"), 6)
    assert answer["choices"] == [{"index": 0, "text": text_of(wanted), "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["prompt_tokens"] == 3 and answer["usage"]["completion_tokens"] == 6
    assert answer["usage"]["total_tokens"] == 9 and answer["object"] == "text_completion"


def test_several_prompts_times_n_are_numbered_prompt_by_prompt(server):
    answer = server.post("/v1/completions", prompt=["ab", [1, 2, 3]], n=2, max_tokens=4, temperature=0).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][0]["text"] == answer["choices"][1]["text"]
    assert answer["choices"][2]["text"] == text_of(expected(server.executor, [1, 2, 3], 4))
    assert answer["usage"]["prompt_tokens"] == 5 and answer["usage"]["completion_tokens"] == 16


def test_case_d15_a_seed_gives_the_same_tokens_and_its_choices_differ(make):
    def ask(server: Any) -> list[str]:
        found = server.post("/v1/completions", prompt="ab", n=3, max_tokens=12, seed=5).json()
        return [choice["text"] for choice in found["choices"]]

    server, other = make(), make()
    first = ask(server)
    other.post("/v1/completions", prompt="other", max_tokens=9)
    assert first == ask(other) == ask(server)
    assert len(set(first)) == 3


@pytest.mark.parametrize("include_usage", [None, False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_case_d06_the_envelope_of_a_stream(server, path, include_usage):
    asked = {"prompt": "abc"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "abc"}]}
    options = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    body = {**asked, "max_tokens": 9, "temperature": 0, "n": 2}
    whole = server.post(path, **body).json()
    chunks = stream(server.post(path, stream=True, **body, **options))
    assert len({chunk["id"] for chunk in chunks}) == 1 and len({chunk["created"] for chunk in chunks}) == 1
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    for number, choice in enumerate(whole["choices"]):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == number]
        if path == "/v1/completions":
            assert "".join(entry["text"] for entry in mine) == choice["text"]
        else:
            assert mine[0]["delta"]["role"] == "assistant"
            assert "".join(entry["delta"].get("content", "") for entry in mine) == choice["message"]["content"]
        assert [entry["finish_reason"] for entry in mine][-1] == choice["finish_reason"] == "length"
        assert all(entry["finish_reason"] is None for entry in mine[:-1])


@pytest.mark.parametrize("streamed", [False, True])
def test_case_d04_a_stop_string_that_spans_tokens_is_never_seen(make, streamed):
    pieces = b"abcDEFGHij"
    server = make(FakeExecutor(script=lambda history: pieces[(len(history) - 1) % len(pieces)], run_ahead=False))

    def ask(**body: Any) -> tuple[str, str]:
        answer = server.post("/v1/completions", prompt="x", max_tokens=9, temperature=0, stream=streamed, **body)
        if not streamed:
            choice = answer.json()["choices"][0]
            return choice["text"], choice["finish_reason"]
        chunks = [chunk["choices"][0] for chunk in stream(answer)]
        return "".join(chunk["text"] for chunk in chunks), chunks[-1]["finish_reason"]

    assert ask(stop="DEFG") == ("abc", "stop")
    assert ask(stop=["zz", "GHi"]) == ("abcDEF", "stop")
    assert ask(stop="a") == ("", "stop")
    assert ask(stop=["abcDEFGHx"]) == ("abcDEFGHi", "length")
    for bad in ([""], ["x"] * 17, 5):
        answer = server.post("/v1/completions", prompt="x", stop=bad)
        assert answer.status_code == 400 and "stop" in answer.json()["error"]["message"]


def test_case_d07_the_reason_is_each_choices_own(make):
    ending = {3: 257}
    server = make(FakeExecutor(script=lambda history: ending.get(len(history), 98)))
    answer = server.post("/v1/completions", prompt=["a", "abcdef"], max_tokens=3, temperature=0).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
    assert [choice["text"] for choice in answer["choices"]] == ["bb", "bbb"]


def test_case_d09_logprobs_are_finite_and_bytes_join_to_the_text(make):
    server = make(FakeExecutor())
    answer = server.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=5,
        logit_bias={str(token): -100 for token in range(100)},
    )
    choice = answer.json()["choices"][0]
    content = choice["logprobs"]["content"]
    joined = bytes(byte for entry in content for byte in entry["bytes"])
    assert joined.decode("utf-8", "replace") == choice["message"]["content"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 5
        assert sum(2.718281828459045 ** top["logprob"] for top in entry["top_logprobs"]) <= 1 + 1e-6
    bad = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], top_logprobs=3)
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "top_logprobs"


def test_case_d10_echo_with_no_tokens_scores_the_prompt_hot_and_cold_alike(make):
    server = make(FakeExecutor(page_tokens=4))
    body = {"prompt": "abcdefghijk", "echo": True, "max_tokens": 0, "logprobs": 1}
    first, second = (server.post("/v1/completions", **body).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    choice = first["choices"][0]
    assert choice["text"] == "abcdefghijk" and choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 11 and choice["logprobs"]["text_offset"] == list(range(11))
    assert first["usage"]["completion_tokens"] == 0
    assert server.post("/v1/completions", prompt="abc", max_tokens=0).status_code == 400


def test_echo_with_logprobs_is_streamed_with_the_prompts(make):
    body = {"prompt": ["abcde", "xyz"], "echo": True, "max_tokens": 3, "logprobs": 2, "n": 2, "temperature": 0}
    server = make(FakeExecutor(page_tokens=4, script=letters))
    whole = server.post("/v1/completions", **body).json()
    entries = [chunk["choices"][0] for chunk in stream(server.post("/v1/completions", stream=True, **body))]
    for number, choice in enumerate(whole["choices"]):
        mine = [entry for entry in entries if entry["index"] == number]
        assert "".join(entry["text"] for entry in mine) == choice["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            told = [entry["logprobs"][name] for entry in mine if entry["logprobs"]]
            assert [value for values in told for value in values] == choice["logprobs"][name]
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert len(choice["logprobs"]["tokens"]) == (5, 5, 3, 3)[number] + 3
        # The prompt comes with the first token, and not when all is over.
        assert [len(entry["logprobs"]["tokens"]) for entry in mine if entry["logprobs"]] == [
            (5, 5, 3, 3)[number] + 1,
            1,
            1,
        ]


def test_case_d11_the_limits_of_tokens(make):
    server = make(FakeExecutor(script=letters), max_seq=64)

    def tokens(**body: Any) -> Any:
        answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], temperature=0, **body)
        return answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else answer.status_code

    assert tokens(max_tokens=3) == tokens(max_completion_tokens=3) == tokens(max_completion_tokens=3, max_tokens=9) == 3
    most = tokens(max_tokens=None)
    assert most == tokens() == tokens(max_tokens=10**12) > 3
    assert {tokens(max_tokens=bad) for bad in (-1, 0, 0.5, "5", True)} == {400}


def test_case_d18_a_prompt_that_is_too_long_says_both_numbers(make):
    server = make(max_seq=64)
    assert server.post("/v1/completions", prompt="a" * 63, max_tokens=5).json()["usage"]["completion_tokens"] == 1
    for length in (64, 65, 10_000, 7_000_000):
        for streamed in (False, True):
            answer = server.post("/v1/completions", prompt="a" * length, max_tokens=1, stream=streamed)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert "64" in error["message"] and str(length) in error["message"]


def test_the_template_makes_the_prompt_and_users_cannot_write_control_tokens(server):
    messages = [{"role": "user", "content": "<|im_end|>"}]
    ids = server.post("/tokenize", messages=messages).json()["tokens"]
    assert ids.count(258) == 2 and ids.count(259) == 1
    parts = [{"role": "user", "content": [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]}]
    assert server.post("/tokenize", messages=parts).json()["tokens"] == ids
    assert server.post("/detokenize", tokens=list(b"hey")).json() == {"prompt": "hey"}
