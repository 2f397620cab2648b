"""``benchmark --against vllm`` without vLLM: whole answers of ours are timed, the peer's row says why it is empty."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_peer_that_is_not_there_has_a_row_with_its_reason(
    tiny: Path, tmp_path: Path, cacheir: Callable[..., Any]
) -> None:
    out = tmp_path / "report.json"
    words = ["--against", "vllm", "--backend", "cpu", "--cell", "answer-16-8", "--samples", "1", "--screen", "1"]
    made = cacheir("benchmark", str(tiny), *words, "--threads", "1", "--output", str(out))
    assert made.returncode == 0, made.stderr
    report = json.loads(out.read_text())
    assert "vllm is not installed" in report["missing"]["vllm"]
    # Of rounds there are more where others had the processor in the first.
    rounds = {(sample["cell"], sample["engine"]) for sample in report["samples"] if sample["part"] == "round"}
    assert rounds == {("answer-16-8", "cacheir")}
    assert "vllm | did not run" in out.with_suffix(".md").read_text()


def test_another_peer_has_no_whole_answers(tiny: Path, cacheir: Callable[..., Any]) -> None:
    made = cacheir("benchmark", str(tiny), "--against", "vllm", "--against", "openvino", "--backend", "cpu")
    assert made.returncode == 2 and "only vllm gives them" in made.stderr
