"""The ``llm`` command through its settings for OpenAI-compatible servers, unchanged: chats, whole and streamed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir import Runtime

QUESTION = "What is the capital of France? Answer in one word."
# llm brings its own pins, so it may live in an environment of its own, which this variable names.
LLM = os.environ.get("CACHEIR_LLM") or shutil.which("llm")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LLM, reason="llm is not installed: `make soak` installs it and sets CACHEIR_LLM"),
]

Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ask(served: Any, tmp_path: Path) -> Ask:
    """Runs ``llm`` with a folder of settings that knows this server alone."""
    settings = f"- model_id: here\n  model_name: smollm2\n  api_base: {served.url}/v1\n  api_key_name: here\n"
    (tmp_path / "extra-openai-models.yaml").write_text(settings, encoding="utf-8")
    (tmp_path / "keys.json").write_text('{"here": "unused"}', encoding="utf-8")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        command = [str(LLM), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False
        )

    return run


@pytest.fixture(scope="module")
def wanted() -> str:
    """What the runtime answers, greedily."""
    with Runtime("smollm2", max_seq=1024) as runtime:
        return "".join(runtime.chat([{"role": "user", "content": QUESTION}], 12))


@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_a_chat_is_what_the_runtime_says(ask: Ask, wanted: str, how: tuple[str, ...]) -> None:
    done = ask("prompt", "-m", "here", "-o", "temperature", "0", "-o", "max_tokens", "12", *how, QUESTION)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == wanted.strip() != ""
    (logged,) = json.loads(ask("logs", "--json").stdout)
    assert logged["output_tokens"] <= 12 and logged["input_tokens"] > 0


def test_a_conversation_goes_on(ask: Ask) -> None:
    options = ("-o", "temperature", "0", "-o", "max_tokens", "8")
    assert ask("prompt", "-m", "here", *options, QUESTION).returncode == 0
    done = ask("prompt", "-c", *options, "And of Italy?")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert len({entry["conversation_id"] for entry in json.loads(ask("logs", "--json").stdout)}) == 1


def test_what_is_refused_is_said(ask: Ask) -> None:
    done = ask("prompt", "-m", "here", "-o", "max_tokens", "12", "word " * 5000)
    assert done.returncode != 0 and "context holds 1024" in done.stderr
