"""Which of several files' samples the table of musts takes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any


def written(folder: Path, name: str, when: str, milliseconds: list[float]) -> None:
    shape: dict[str, Any] = {
        "model": "qwen3-0.6b",
        "measured": when,
        "throughput": {"32": {"samples_ms": milliseconds}},
    }
    (folder / name).write_text(json.dumps(shape))


def beside(folder: Path, when: str, seconds: list[float]) -> None:
    cell = {"batch": 32, "prompt": 128, "output": 128, "ours_s": seconds, "peer_s": seconds}
    given = {"model": "qwen3-0.6b", "measured": when, "peer": "vllm-in-process", "cells": [cell]}
    (folder / "beside_vllm-in-process_qwen3-0.6b.json").write_text(json.dumps(given))


def test_the_newest_counts_unless_it_has_too_few_samples(tmp_path: Path) -> None:
    musts = importlib.import_module("report_musts")
    written(tmp_path, "shape_qwen3-0.6b.json", "2026-12-01T05:00:00", [128.0] * 20)

    def found() -> Any:
        return musts.measured(tmp_path)["qwen3-0.6b", "batch 32"]

    assert (round(found().value), found().samples, found().file) == (32000, 20, "shape_qwen3-0.6b.json")
    beside(tmp_path, "2026-12-01T06:00:00", [0.064] * 13)
    assert (round(found().value), found().samples) == (32000, 20)
    beside(tmp_path, "2026-12-01T04:00:00", [0.064] * 20)
    assert (round(found().value), found().samples) == (32000, 20)
    beside(tmp_path, "2026-12-01T06:00:00", [0.256] * 20)  # newer and worse
    assert (round(found().value), found().samples) == (16000, 20)
    written(tmp_path, "shape_qwen3-0.6b.json", "2026-12-01T07:00:00", [128.0] * 3)
    beside(tmp_path, "2026-12-01T06:00:00", [0.256] * 2)
    assert (round(found().value), found().samples) == (32000, 3)  # neither has them: the newest
