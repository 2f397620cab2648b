"""What the server refuses, and how: always OpenAI's error object, never a 5xx, and nobody else is disturbed."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from cacheir.runtime.engine.job import Event
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.testing.fake_model import FakeExecutor
from cacheir_server.choice import finish_reason
from cacheir_server.errors import ApiError
from cacheir_server.guards import OPEN_PATHS

JSON_TYPE = {"Content-Type": "application/json"}


def raw(bench: Any, body: str | bytes, path: str = "/v1/completions", **headers: str) -> Any:
    return bench.client.post(path, content=body, headers={**JSON_TYPE, **headers})


def check_error(answer: Any, status: int, param: str | None = None) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text and "cacheir_server" not in answer.text
    if param is not None:
        assert param in (error["param"] or error["message"])
    return str(error["message"])


BAD_VALUES = [
    *[("temperature", value) for value in ("NaN", "-Infinity", "1e400", "-1", '"0.7"', "true", "[]")],
    *[("top_p", value) for value in ("0", "7", "NaN")],
    *[("top_k", value) for value in ("-5", "1.5", '"3"')],
    *[("presence_penalty", value) for value in ("10", "-10", "NaN")],
    *[("frequency_penalty", value) for value in ("10", "-10", "NaN")],
    *[("repetition_penalty", value) for value in ("0", "-1")],
    *[("min_p", value) for value in ("2", "-0.1")],
    *[("n", value) for value in ("0", "-1", "1000000")],
    *[("best_of", value) for value in ("2", "0")],
    *[("seed", value) for value in ("-1", "18446744073709551616", '"x"')],
    *[("logit_bias", value) for value in ('{"x": 1}', '{"1": 101}', '{"99999": 1}', "[]")],
    *[("stop_token_ids", value) for value in ("[-1]", "[true]")],
    *[("cacheir", value) for value in ('{"priority": 1000}', '{"nope": 1}', "5")],
]


@pytest.mark.parametrize(("field", "value"), BAD_VALUES)
def test_case_d12_bad_values_are_named(bench, field, value):
    check_error(raw(bench, f'{{"model": "fake", "prompt": "a", "max_tokens": 1, "{field}": {value}}}'), 400)
    body = f'{{"model": "fake", "messages": [{{"role": "user", "content": "a"}}], "max_tokens": 1, "{field}": {value}}}'
    check_error(raw(bench, body, "/v1/chat/completions"), 400)


def test_null_means_the_default_and_legal_negatives_are_taken(bench):
    fields = ("temperature", "top_p", "top_k", "n", "seed", "stop", "logit_bias", "presence_penalty", "stream", "user")
    body = {"prompt": "a", "max_tokens": 2, **dict.fromkeys(fields)}
    assert bench.post("/v1/completions", **body).status_code == 200
    assert bench.post("/v1/completions", prompt="a", max_tokens=2, presence_penalty=-2.0).status_code == 200


def test_case_d14_half_a_surrogate_pair_is_refused_and_a_whole_one_is_text(bench):
    for content in (r"\ud83d", r"\ude00\ud83d", r"a\ud800"):
        for body in (
            f'{{"model": "fake", "prompt": "{content}"}}',
            f'{{"model": "fake", "prompt": "a", "stop": "{content}"}}',
            f'{{"model": "{content}", "prompt": "a"}}',
            f'{{"model": "fake", "prompt": "a", "user": "{content}", "stream": true}}',
        ):
            check_error(raw(bench, body), 400)
    whole = raw(bench, r'{"model": "fake", "prompt": "\ud83d\ude00", "max_tokens": 1}')
    assert whole.status_code == 200 and whole.json()["usage"]["prompt_tokens"] == 4
    assert raw(bench, '{"model": "fake", "prompt": "a\\u0000b", "max_tokens": 1}').status_code == 200
    for body in (b'{"model": "\xff"}', '{"model": "fake"}'.encode("utf-16"), b"\xef\xbb\xbf{}"):
        check_error(raw(bench, body), 400)


@pytest.mark.parametrize(
    "body",
    ["", "null", "[]", '"x"', '{"model": "fake"', '{"model": "fake", "model": "b"}', '{"prompt": "a",}', "[" * 100_000],
)
def test_case_d29_what_is_no_request(bench, body):
    check_error(raw(bench, body), 400)


def test_case_d29_wrong_paths_methods_and_types(bench):
    check_error(bench.client.post("/v1/completions", content="{}", headers={"Content-Type": "text/plain"}), 415)
    check_error(bench.client.get("/v1/completions"), 405)
    check_error(bench.client.post("/nothing/here", json={}), 404)
    check_error(bench.post("/v1/completions", prompt="a", temprature=1), 400, "temprature")
    check_error(bench.post("/v1/completions", prompt=[]), 400, "prompt")
    check_error(bench.post("/v1/completions", prompt=[[]]), 400)
    check_error(bench.post("/v1/completions", prompt=[999999]), 400, "999999")
    check_error(bench.post("/v1/chat/completions", messages=[]), 400, "messages")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a\0b", "..%2f..", "C:\\x", "", "x" * 9000, "other"]
)
def test_case_d24_a_model_is_a_name(bench, name):
    message = check_error(_ask(bench, name), 404, "model")
    assert len(message) < 300
    assert bench.client.get("/v1/models/..%2f..%2fetc").status_code == 404
    listed = bench.client.get("/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["fake"]


def _ask(bench: Any, name: str) -> Any:
    return bench.client.post("/v1/completions", json={"model": name, "prompt": "a"})


def test_a_missing_model_is_a_missing_field(bench):
    check_error(bench.client.post("/v1/completions", json={"prompt": "a"}), 400, "model")


def test_case_d25_a_body_above_the_limit_is_not_read(make):
    bench = make(settings={"max_body_bytes": 10_000})
    check_error(raw(bench, " " * 20_000), 413)

    def pieces():
        for _ in range(1000):
            yield b" " * 1000

    check_error(bench.client.post("/v1/completions", content=pieces(), headers=JSON_TYPE), 413)
    check_error(raw(bench, b"\x1f\x8b", **{"Content-Encoding": "gzip"}), 415)
    assert bench.post("/v1/completions", prompt="a", max_tokens=1).status_code == 200


def test_case_d22_every_route_needs_the_key(make):
    bench = make(settings={"api_keys": ("secret", "second")})
    paths = {route.path for route in bench.app.routes}
    assert {"/v1/completions", "/metrics", "/openapi.json"} <= paths
    odd = {"//v1/completions", "/V1/models", "/v1/../v1/models", "/v1/models/", "/docs", "/nothing", "/health/"}
    for path in (paths | odd) - OPEN_PATHS:
        concrete = path.replace("{name:path}", "fake")
        for method in ("GET", "POST"):
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "Bearer secret "},
                {"Authorization": "secret"},
            ):
                answer = bench.client.request(method, f"http://testserver{concrete}", headers=headers)
                check_error(answer, 401)
    for path in OPEN_PATHS:
        assert bench.client.get(path).status_code == 200
    for key in ("secret", "second"):
        for scheme in ("Bearer", "bearer"):
            headers = {"Authorization": f"{scheme} {key}"}
            assert bench.client.get("/v1/models", headers=headers).status_code == 200


def test_case_d21_a_full_queue_refuses_at_once_and_frees_its_places(make):
    executor = FakeExecutor(run_ahead=False)
    gate = threading.Event()
    executor.fault = lambda step, row: None if gate.wait(90) else "late"
    limits = EngineLimits(max_batch=1, max_rows=1, max_tokens=16, chunk_tokens=16, max_queue=4)
    bench = make(executor, engine={"limits": limits})
    answers: list[Any] = []

    def ask(number: int, streamed: bool) -> None:
        answers.append(bench.post("/v1/completions", prompt=f"p{number}", max_tokens=1, stream=streamed))

    threads = [threading.Thread(target=ask, args=(number, number % 2 == 0)) for number in range(14)]
    for thread in threads:
        thread.start()
    state, deadline = bench.engine.state, time.monotonic() + 60
    # Until one step stands still and every request is answered, taken or left for after that step.
    while not executor.steps or (
        len(answers) + len(bench.service.thread._commands) + len(state.running) + len(state.waiting) < len(threads)
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    gate.set()
    for thread in threads:
        thread.join(30)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(answers) == 14 and 0 < len(refused) < 14
    assert all(answer.headers["Retry-After"] and "queue" in check_error(answer, 429) for answer in refused)
    assert sum(answer.status_code == 200 for answer in answers) == 14 - len(refused)
    # All or nothing: six prompts do not fit into four places.
    check_error(bench.post("/v1/completions", prompt=[f"q{n}" for n in range(6)], max_tokens=1), 429)
    assert bench.post("/v1/completions", prompt="after", max_tokens=1).status_code == 200


def test_a_request_may_wait_for_room_in_the_queue_and_is_counted(make):
    executor = FakeExecutor(run_ahead=False, script=lambda history: 98)
    limits = EngineLimits(max_batch=1, max_rows=1, max_tokens=16, chunk_tokens=16, max_queue=1)
    bench = make(executor, engine={"limits": limits}, settings={"queue_wait_s": 60}, max_seq=4096, kv_tokens=9000)
    counters = bench.engine.state.counters
    # One runs, one is in the queue, and steps take their time until somebody has found no room.
    executor.fault = lambda step, row: None if counters.backpressure_waits else time.sleep(0.02)
    answers: list[int] = []

    def ask(number: int) -> None:
        answer = bench.post("/v1/completions", prompt=f"p{number}", max_tokens=300, ignore_eos=True)
        answers.append(answer.status_code)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == [200] * 4
    assert 1 <= counters.backpressure_waits <= 3 and counters.requests["length"] == 4


def test_case_d19_what_cannot_fit_the_pages_is_refused_and_the_rest_ends(make):
    bench = make(FakeExecutor(page_tokens=16, groups=1, max_tokens=64), max_seq=1024, kv_tokens=128)
    check_error(bench.post("/v1/completions", prompt="a" * 200, max_tokens=1), 400)
    answer = bench.post("/v1/completions", prompt="b" * 100, max_tokens=100, ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["total_tokens"] <= 128
    both = bench.post("/v1/completions", prompt=["c" * 100, "d" * 100], max_tokens=5, ignore_eos=True).json()
    assert both["usage"]["completion_tokens"] == 10


def test_an_engine_that_fails_a_row_tells_its_client_alone(make):
    executor = FakeExecutor(run_ahead=False)
    executor.fault = lambda step, row: "no memory" if row.tokens[0] == ord("x") else None
    bench = make(executor)
    check_error(bench.post("/v1/completions", prompt="x", max_tokens=2), 500, "no memory")
    assert bench.post("/v1/completions", prompt="y", max_tokens=2).status_code == 200
    streamed = bench.post("/v1/completions", prompt="x", max_tokens=2, stream=True)
    first = json.loads(streamed.text.split("\n\n")[0].removeprefix("data: "))
    assert "no memory" in first["error"]["message"] and streamed.text.endswith("data: [DONE]\n\n")


def test_a_grammar_that_the_allowed_ids_cannot_fill_is_the_requests_own_error(make):
    bench = make(FakeExecutor())
    body = {"max_tokens": 5, "structured_outputs": {"choice": ["ab"]}, "allowed_token_ids": [ord("a")]}
    check_error(bench.post("/v1/completions", prompt="x", **body), 400, "cannot be answered further")
    text = bench.post("/v1/completions", prompt="x", stream=True, **body).text
    told = json.loads(text.split("\n\n")[-3].removeprefix("data: "))["error"]
    assert (told["type"], told["code"]) == ("invalid_request_error", "invalid_value")
    assert bench.post("/v1/completions", prompt="y", max_tokens=2).status_code == 200


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("request", 400, "invalid_value"), ("capacity", 503, "no_capacity"), ("internal", 500, "engine_error")],
)
def test_whose_an_error_is_decides_its_status(kind, status, code):
    with pytest.raises(ApiError, match="why") as caught:
        finish_reason(Event(job_id="j", outcome="error", error="why", error_kind=kind))
    assert (caught.value.status, caught.value.body["error"]["code"]) == (status, code)
    assert ("Retry-After" in (caught.value.headers or {})) == (kind == "capacity")


def test_an_integer_without_end_is_refused_in_words_of_our_own(bench):
    headers = {"Content-Type": "application/json"}
    for digits in (641, 5000):
        raw = '{"model": "fake", "prompt": "a", "max_tokens": ' + "9" * digits + "}"
        answer = bench.client.post("/v1/completions", content=raw, headers=headers)
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and f"an integer of {digits} digits" in message
        assert "sys." not in message
    raw = '{"model": "fake", "prompt": "a", "max_tokens": ' + "9" * 640 + ', "temperature": 0}'
    assert bench.client.post("/v1/completions", content=raw, headers=headers).status_code == 200


def test_a_length_without_end_is_too_large(bench):
    headers = {"Content-Type": "application/json", "Content-Length": "9" * 5000}
    assert bench.client.post("/v1/completions", content=b"{}", headers=headers).status_code == 413
