"""Open-loop load: requests leave when their time has come, however many are under way, and every chunk is timed."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from cacheir.errors import UsageError

_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent: ``requests`` at ``rate`` in a second on average, after ``warmup`` others one after another.

    Prompts have ``prompt_words`` random words, so that none begins like another; answers ``max_tokens`` tokens.
    """

    url: str
    model: str
    requests: int = 50
    rate: float = 2.0
    warmup: int = 3
    prompt_words: int = 32
    max_tokens: int = 32
    seed: int = 0
    api_key: str = ""


@dataclass(kw_only=True)
class Sample:
    """One request, times in seconds from the beginning of the run: when it was due, left, and what came when."""

    due: float
    sent: float = 0.0
    chunks: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """``count`` times of a Poisson process with ``rate`` arrivals in a second."""
    made, now, generator = [], 0.0, random.Random(seed)
    for _ in range(count):
        now += generator.expovariate(rate)
        made.append(now)
    return made


def place_of(url: str) -> SplitResult:
    """The parts of a server's address; ``UsageError`` for what is none."""
    try:
        place = urlsplit(url)
        sound = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{url[:200]!r} is no address of a server", hint="--url http://127.0.0.1:8000/v1")
    return place


def run_load(load: Load, progress: Callable[[str], None]) -> list[Sample]:
    """Sends all of ``load`` and waits for the last answer; ``UsageError`` where the server cannot be reached."""
    place, generator = place_of(load.url), random.Random(f"prompts {load.seed}")
    for number in range(load.warmup):
        progress(f"warming up, {number + 1} of {load.warmup}")
        sample = Sample(due=0.0)
        _ask(place, load, _prompt(load, generator), sample, time.perf_counter())
        if sample.error and number == 0:
            raise UsageError(f"{load.url} does not answer: {sample.error}", hint="start it: cacheir serve MODEL")
    samples = [Sample(due=due) for due in arrivals(load.requests, load.rate, load.seed)]
    prompts = [_prompt(load, generator) for _ in samples]
    progress(f"sending {load.requests} requests over about {samples[-1].due:.0f} s")
    _send(place, load, samples, prompts)
    return samples


def _send(place: SplitResult, load: Load, samples: Sequence[Sample], prompts: Sequence[str]) -> None:
    began, threads = time.perf_counter(), []
    for sample, prompt in zip(samples, prompts):
        time.sleep(max(0.0, sample.due - (time.perf_counter() - began)))
        thread = threading.Thread(target=_ask, args=(place, load, prompt, sample, began), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _ask(place: SplitResult, load: Load, prompt: str, sample: Sample, began: float) -> None:
    """One streamed completion; what went wrong is the sample's ``error``."""
    body = {
        "model": load.model,
        "prompt": prompt,
        "max_tokens": load.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json"}
    if load.api_key:
        headers["Authorization"] = f"Bearer {load.api_key}"
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.netloc, timeout=_TIMEOUT_S)
    sample.sent = time.perf_counter() - began
    try:
        connection.request("POST", f"{place.path.rstrip('/')}/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            sample.error = f"status {answer.status}"
            return
        _read(answer, sample, began)
    except (OSError, ValueError, http.client.HTTPException) as error:
        sample.error = f"{type(error).__name__}: {error}"
    finally:
        sample.ended = time.perf_counter() - began
        connection.close()


def _read(answer: http.client.HTTPResponse, sample: Sample, began: float) -> None:
    for line in answer:
        data = line.removeprefix(b"data: ").strip()
        if not line.startswith(b"data: "):
            continue
        if data == b"[DONE]":
            break
        chunk = json.loads(data)
        if "error" in chunk:
            sample.error = str(chunk["error"])
        if any(choice.get("text") for choice in chunk.get("choices", ())):
            sample.chunks.append(time.perf_counter() - began)
        _note_usage(sample, chunk.get("usage"))
    else:
        sample.error = sample.error or "the stream ended without [DONE]"


def _note_usage(sample: Sample, usage: Any) -> None:
    if isinstance(usage, dict):
        sample.tokens = int(usage.get("completion_tokens") or 0)
        sample.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _prompt(load: Load, generator: random.Random) -> str:
    return " ".join(str(generator.randrange(10**5, 10**6)) for _ in range(load.prompt_words))
