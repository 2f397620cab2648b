"""Further variants of the hard cases of serving, each with the outcome that is expected, whole and streamed."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.websockets import WebSocketDisconnect

from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.testing.fake_model import ByteTokenizer, FakeExecutor, expected

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FLOOR = -9999.0


def strict(text: str) -> Any:
    """JSON as the standard has it: bare NaN and Infinity are none."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def choices_of(answer: Any, *, streamed: bool) -> list[dict[str, Any]]:
    """The entries of choice 0: one for a whole answer, one for each chunk of a streamed one."""
    assert answer.status_code == 200, answer.text
    if not streamed:
        return [strict(answer.text)["choices"][0]]
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [strict(line.removeprefix("data: ")) for line in lines[:-2]]
    return [chunk["choices"][0] for chunk in chunks if chunk["choices"]]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 20, "logit_bias": {str(token): -100 for token in range(255)}},
        {"top_logprobs": 20, "top_k": 1, "temperature": 0.7, "seed": 5},
        {"top_logprobs": 20, "allowed_token_ids": [97, 98]},
        {"top_logprobs": 0},
    ],
)
def test_case_d09_logprobs_of_a_chat_are_strict_json_and_the_models_own(make, fields, streamed):
    server = make(FakeExecutor())
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0, "logprobs": True}
    answer = server.post(CHAT, **{**body, **fields, "ignore_eos": True}, stream=streamed)
    entries = choices_of(answer, streamed=streamed)
    content = [token for entry in entries if entry["logprobs"] for token in entry["logprobs"]["content"]]
    text = "".join((entry.get("message") or entry.get("delta")).get("content") or "" for entry in entries)
    assert len(content) == 6
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode("utf-8", "replace") == text
    prompt = server.post("/tokenize", messages=body["messages"]).json()["tokens"]
    for place, entry in enumerate(content):
        top = [one["logprob"] for one in entry["top_logprobs"]]
        assert len(top) == fields["top_logprobs"] and top == sorted(top, reverse=True)
        assert all(FLOOR <= value <= 0 for value in (*top, entry["logprob"]))
        assert sum(map(math.exp, top)) <= 1 + 1e-6
        # Before every filter, bias and temperature: the model's own distribution, whatever was picked from it.
        history = [*prompt, *(one["bytes"][0] if one["bytes"] else 256 for one in content[:place])]
        if all(token < 256 for token in history[len(prompt) :]):
            logs = log_softmax(server.executor.logits(history))
            assert top == pytest.approx(sorted(map(float, logs), reverse=True)[: len(top)], abs=1e-9)


@pytest.mark.parametrize("streamed", [False, True])
def test_case_d09_a_vocabulary_smaller_than_what_is_asked_for(make, streamed):
    class Eight(ByteTokenizer):
        vocab_size = 8
        special_ids = frozenset()

    server = make(FakeExecutor(vocab=8), tokenizer=Eight(), eos_ids=())
    body = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, "logprobs": 5, "echo": True}
    entries = choices_of(server.post(COMPLETIONS, **body, stream=streamed), streamed=streamed)
    top = [one for entry in entries if entry["logprobs"] for one in entry["logprobs"]["top_logprobs"]]
    assert len(top) == 8 and top[0] is None
    assert all(0 < len(one) <= 5 and all(FLOOR <= value <= 0 for value in one.values()) for one in top[1:])
    chat = {"messages": [{"role": "user", "content": "\x01"}], "max_tokens": 3, "temperature": 0, "logprobs": True}
    small = make(FakeExecutor(vocab=8), tokenizer=Eight(), eos_ids=(), template="{{ messages[0]['content'] }}")
    entries = choices_of(small.post(CHAT, **chat, top_logprobs=20, stream=streamed), streamed=streamed)
    content = [token for entry in entries if entry["logprobs"] for token in entry["logprobs"]["content"]]
    assert [len(token["top_logprobs"]) for token in content] == [8, 8, 8]
    assert sum(math.exp(one["logprob"]) for one in content[0]["top_logprobs"]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("streamed", [False, True])
def test_case_d10_the_scores_of_an_echoed_prompt_are_right(make, streamed):
    server = make(FakeExecutor(page_tokens=4))
    body = {"prompt": "abcdefghijk", "echo": True, "max_tokens": 0, "logprobs": 1}
    for _ in range(2):  # the second time all of it is cached, and its logits are not
        (entry,) = choices_of(server.post(COMPLETIONS, **body, stream=streamed), streamed=streamed)
        assert entry["text"] == body["prompt"] and entry["finish_reason"] == "length"
        told = entry["logprobs"]["token_logprobs"]
        ids = list(body["prompt"].encode())
        wanted = [log_softmax(server.executor.logits(ids[:place]))[ids[place]] for place in range(1, len(ids))]
        assert told[0] is None and told[1:] == pytest.approx(wanted, abs=1e-9)
    refused = server.post(COMPLETIONS, prompt="abc", max_tokens=0, stream=streamed)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_tokens"
    assert server.post(COMPLETIONS, prompt="abc", max_tokens=1).status_code == 200


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "reason", "tokens"),
    [
        ("DEFG", "abc", "stop", 7),
        ("bc", "a", "stop", 3),
        ("a", "", "stop", 1),
        ("GHI", "abcDEF", "stop", 9),  # complete with the last token that may come
        ("HIJ", "abcDEFGHI", "length", 9),
        ([], "abcDEFGHI", "length", 9),
        (None, "abcDEFGHI", "length", 9),
    ],
)
def test_case_d04_text_reason_and_usage_whole_and_streamed(make, stop, text, reason, tokens, streamed):
    server = make(FakeExecutor(script=lambda history: b"abcDEFGHIJ"[(len(history) - 1) % 10]))
    body = {"prompt": "x", "max_tokens": 9, "temperature": 0, "stop": stop}
    options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    answer = server.post(COMPLETIONS, **body, **options)
    entries = choices_of(answer, streamed=streamed)
    assert "".join(entry["text"] for entry in entries) == text
    assert [entry["finish_reason"] for entry in entries if entry["finish_reason"]] == [reason]
    usage = (
        strict(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"] if streamed else answer.json()["usage"]
    )
    assert usage["completion_tokens"] == tokens


@pytest.mark.parametrize("streamed", [False, True])
def test_case_d04_a_stop_of_one_wide_character(make, streamed):
    said = "ab😀c".encode()
    server = make(FakeExecutor(script=lambda history: said[(len(history) - 1) % len(said)]))
    answer = server.post(COMPLETIONS, prompt="x", max_tokens=7, temperature=0, stop="😀", stream=streamed)
    entries = choices_of(answer, streamed=streamed)
    assert "".join(entry["text"] for entry in entries) == "ab" and entries[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("ends_at", "reason", "text"), [(3, "stop", "bb"), (4, "length", "bbb"), (1, "stop", "")])
def test_case_d07_an_ending_token_at_the_limit_and_behind_it(make, ends_at, reason, text, streamed):
    server = make(FakeExecutor(script=lambda history: 257 if len(history) == ends_at else 98))
    answer = server.post(COMPLETIONS, prompt="a", max_tokens=3, temperature=0, n=2, stream=streamed)
    if streamed:
        chunks = [strict(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-2]]
        entries = [chunk["choices"][0] for chunk in chunks]
    else:
        entries = answer.json()["choices"]
    for index in range(2):
        mine = [entry for entry in entries if entry["index"] == index]
        assert "".join(entry["text"] for entry in mine) == text
        assert mine[-1]["finish_reason"] == reason
        assert all(entry["finish_reason"] is None for entry in mine[:-1])


def test_case_d07_the_end_of_the_context_is_a_length(make):
    server = make(FakeExecutor(script=lambda history: 98), max_seq=16)
    choice = server.post(COMPLETIONS, prompt="a" * 10, temperature=0, max_tokens=99).json()["choices"][0]
    assert choice["finish_reason"] == "length" and choice["text"] == "b" * 6


def test_case_d06_an_answer_of_no_tokens_has_its_envelope(make):
    server = make(FakeExecutor(script=lambda history: 257))
    for path, asked in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})):
        body = {**asked, "max_tokens": 4, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        lines = server.post(path, **body).text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        chunks = [strict(line.removeprefix("data: ")) for line in lines[:-2]]
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 1  # the ending token
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
        assert reasons[-1] == "stop" and set(reasons[:-1]) <= {None}
        if path == CHAT:
            assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"


NAMED = [
    ("temperature", "NaN"),
    ("temperature", "1e400"),
    ("temperature", "-1"),
    ("temperature", '"0.7"'),
    ("top_p", "7"),
    ("top_k", "1.5"),
    ("presence_penalty", "10"),
    ("frequency_penalty", "-10"),
    ("repetition_penalty", "0"),
    ("min_p", "2"),
    ("n", "0"),
    ("seed", "18446744073709551616"),
    ("seed", '"x"'),
]


@pytest.fixture(scope="module")
def busy(make_shared) -> Iterator[Any]:
    """A server with a healthy request under way for as long as this module needs it; its tokens are checked."""
    executor = FakeExecutor(run_ahead=False)
    slow = threading.Event()
    executor.fault = lambda step, row: "set" if slow.wait(0.001) else None
    bench = make_shared(executor, max_seq=4096, kv_tokens=9000)
    found: list[Any] = []
    body = {"prompt": "healthy", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    asking = threading.Thread(target=lambda: found.append(bench.post(COMPLETIONS, **body)))
    asking.start()
    yield bench
    asking.join(60)
    wanted = expected(executor, list(b"healthy"), 400)
    assert found[0].json()["choices"][0]["text"] == ByteTokenizer().decode(wanted)


@pytest.mark.parametrize(("field", "value"), NAMED)
def test_case_d12_the_field_is_named_on_every_route_and_nobody_is_disturbed(busy, field, value):
    headers = {"Content-Type": "application/json"}
    fields = f'"max_tokens": 1, "{field}": {value}'
    one = f'{{"model": "fake", "prompt": "a", {fields}}}'
    bodies = {
        COMPLETIONS: one,
        CHAT: f'{{"model": "fake", "messages": [{{"role": "user", "content": "a"}}], {fields}}}',
        "/v1/cacheir/batch_completions": f'{{"requests": [{one}]}}',
    }
    for path, body in bodies.items():
        answer = busy.client.post(path, content=body, headers=headers)
        error = answer.json()["error"]
        assert answer.status_code == 400
        # NaN is no JSON at all, so there is no field yet that could be named.
        assert value == "NaN" or (error["param"] or "").endswith(field), error


def test_case_d14_half_a_pair_is_refused_wherever_it_stands(bench):
    half, headers = r"\ud83d", {"Content-Type": "application/json"}
    tool = '{"type": "function", "function": {"name": "%s"}}'
    for body in (
        f'{{"model": "fake", "messages": [{{"role": "{half}", "content": "a"}}]}}',
        f'{{"model": "fake", "messages": [{{"role": "user", "content": "{half}"}}], "stream": true}}',
        f'{{"model": "fake", "messages": [{{"role": "user", "content": "a"}}], "tools": [{tool % half}]}}',
        f'{{"model": "fake", "messages": [{{"role": "user", "content": "a"}}], "{half}": 1}}',
    ):
        answer = bench.client.post(CHAT, content=body, headers=headers)
        assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
        assert "Error" not in answer.json()["error"]["message"]


def test_case_d17_as_many_choices_as_the_limit_and_not_one_more(make):
    server = make(FakeExecutor(script=lambda history: 98))
    most = server.settings.max_choices
    answer = server.post(COMPLETIONS, prompt="ab", n=most, max_tokens=2, temperature=0).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(most))
    assert answer["usage"]["prompt_tokens"] == 2 and answer["usage"]["completion_tokens"] == 2 * most
    assert server.post(COMPLETIONS, prompt="ab", n=most + 1, max_tokens=2).status_code == 400


def test_case_d18_ids_are_counted_like_text_and_a_huge_body_is_too_large(make):
    server = make(max_seq=64)
    for streamed in (False, True):
        answer = server.post(COMPLETIONS, prompt=[97] * 65, max_tokens=1, stream=streamed)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        with pytest.MonkeyPatch.context() as patch:  # it is not tokenised
            patch.setattr(server.service.runtime, "encode", None)
            assert server.post(COMPLETIONS, prompt="a" * 20_000_000, stream=streamed).status_code == 413
            assert server.post(COMPLETIONS, prompt="a", max_tokens=1, stream=streamed).status_code == 500
    assert server.post(COMPLETIONS, prompt=[97] * 63, max_tokens=1).status_code == 200


def test_case_d21_of_fifty_five_are_taken_and_the_rest_told_in_json(make):
    executor, gate = FakeExecutor(run_ahead=False), threading.Event()
    executor.fault = lambda step, row: None if gate.wait(60) else "late"
    limits = EngineLimits(max_batch=1, max_rows=1, max_tokens=16, chunk_tokens=16, max_queue=4)
    bench = make(executor, engine={"limits": limits})
    answers: list[Any] = []

    def ask(number: int) -> None:
        answers.append(bench.post(COMPLETIONS, prompt=f"p{number}", max_tokens=1, stream=number % 2 == 0))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    threads[0].start()
    deadline = time.monotonic() + 30
    while not executor.steps and time.monotonic() < deadline:
        time.sleep(0.005)  # the first one runs, and stands still
    for thread in threads[1:]:
        thread.start()
    while len(bench.service.thread._commands) < 49 and time.monotonic() < deadline:
        time.sleep(0.005)  # the others' requests are all there
    gate.set()
    for thread in threads:
        thread.join(60)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answers) == 50 and len(refused) == 45
    for answer in refused:
        assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["content-type"] == "application/json"
    assert bench.post(COMPLETIONS, prompt="after", max_tokens=1).status_code == 200


def test_case_d22_a_websocket_needs_the_key_too(make):
    bench = make(settings={"api_keys": ("secret",)})
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(WebSocketDisconnect) as caught, bench.client.websocket_connect("/v1/x", headers=headers):
            pass
        assert caught.value.code == 1008


def test_case_d25_very_many_messages_are_no_crash(make):
    bench = make(settings={"max_body_bytes": 64 << 20}, max_seq=64)
    many = ",".join(['{"role":"user","content":"a"}'] * 30_000)
    body = f'{{"model": "fake", "messages": [{many}]}}'
    answer = bench.client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and bench.client.get("/health").status_code == 200
