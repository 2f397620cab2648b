"""Requests made out of the server's own OpenAPI document: whatever they hold, no answer is the server's fault."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine.engine import Engine
from cacheir.testing.fake_model import FakeExecutor, open_fake
from cacheir.testing.fake_runtime import FakeRuntime
from cacheir_server.app import create_app
from cacheir_server.service import Service
from cacheir_server.settings import ServerSettings

TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def app() -> Any:
    runtime = FakeRuntime(open_fake(FakeExecutor(max_tokens=64), chat_template=TEMPLATE))
    service = Service(runtime, ServerSettings(model_name="fake"), Engine(runtime.model))
    yield create_app(service)
    service.close()


def check_requests(app: Any, examples: int) -> None:
    """``examples`` requests for each operation of the document, all answered by the server's own word."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} == set(app.openapi()["paths"])

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(operation: Any, data: Any) -> None:
        case = data.draw(operation.as_strategy())
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "fake"  # else nearly every request ends at its model's name
        answer = case.call()
        wanted = answer.status_code == 504 and "deadline_ms" in str(case.body)  # it asked to be given up so soon
        assert answer.status_code < 500 or wanted, answer.text
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    for operation in operations:
        check(operation)


def test_no_answer_is_the_servers_fault(app: Any) -> None:
    check_requests(app, 15)


@pytest.mark.slow
def test_no_answer_of_many_is_the_servers_fault(app: Any) -> None:
    check_requests(app, 400)


def test_the_document_names_every_route(app: Any) -> None:
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"} <= set(app.openapi()["paths"])
