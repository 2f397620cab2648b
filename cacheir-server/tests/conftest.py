"""An application over the fake model of ``cacheir.testing``: its next token is a function of what it was fed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cacheir.runtime.engine.engine import Engine, default_limits
from cacheir.testing.fake_model import FakeExecutor, open_fake
from cacheir.testing.fake_runtime import FakeRuntime
from cacheir_server.app import create_app
from cacheir_server.service import Service
from cacheir_server.settings import ServerSettings

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Bench:
    """A server under test: its client, its service, and the executor behind it."""

    def __init__(self, executor: FakeExecutor, settings: dict[str, Any], engine: dict[str, Any], **model: Any) -> None:
        self.executor = executor
        self.model = open_fake(executor, chat_template=model.pop("template", TEMPLATE), **model)
        self.settings = ServerSettings(**{"model_name": "fake", **settings})
        limits = engine.pop("limits", None) or default_limits(self.model)
        self.engine = Engine(self.model, limits, **engine)
        self.service = Service(FakeRuntime(self.model), self.settings, self.engine)
        self.app = create_app(self.service)
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def rest(self) -> None:
        """Until the engine's thread stands still: an answer is told before its step is over and counted."""
        deadline = time.monotonic() + 60
        self.service.thread.call(lambda engine: None)  # what was left before, such as a cancellation, is done
        while self.service.thread.stalled_seconds:
            assert time.monotonic() < deadline, "the engine has not come to rest"
            time.sleep(0.002)

    def post(self, path: str, **body: Any) -> Any:
        """The answer to a body, the model's name filled in."""
        return self.client.post(path, json={"model": "fake", **body})


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes servers; all are closed afterwards."""
    yield from _maker()


@pytest.fixture(scope="module")
def make_shared() -> Iterator[Make]:
    """As ``make``, for a whole module."""
    yield from _maker()


def _maker() -> Iterator[Make]:
    made: list[Bench] = []

    def one(
        executor: FakeExecutor | None = None,
        *,
        settings: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        **model: Any,
    ) -> Bench:
        bench = Bench(executor or FakeExecutor(max_tokens=64), settings or {}, dict(engine or {}), **model)
        made.append(bench)
        return bench

    yield one
    for bench in made:
        bench.service.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    """A server without a key."""
    return make()
