"""How commands open a model: what they set in the environment before a backend is loaded."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from cacheir.cli import model_options

NAME = "OPENBLAS_THREAD_TIMEOUT"


def opened_with(monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What the variable was as the runtime was made."""
    seen: list[str | None] = []

    def fake_runtime(*arguments: Any, **options: Any) -> Any:
        seen.append(os.environ.get(NAME))
        return SimpleNamespace(artifact=SimpleNamespace(notes=()))

    monkeypatch.setattr(model_options, "Runtime", fake_runtime)
    model_options.open_runtime(
        "m", backend="auto", threads=0, max_seq=0, batch_invariant=False, precise=False, unfuse=[]
    )
    return seen[0]


def test_blas_threads_do_not_spin_beside_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "26")  # so that the test leaves the variable as it was
    monkeypatch.delenv(NAME)
    assert opened_with(monkeypatch) == "4"


def test_what_the_user_chose_for_blas_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "20")
    assert opened_with(monkeypatch) == "20"
