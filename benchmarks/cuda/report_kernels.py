"""What the report says of kernels: forced ones beside the default's error and times, and the bytes a second of each.

From untried*.json (``untried.py``: whole models with one kernel or setting changed) and cuda_kernels*.json (``cacheir
benchmark --suite cuda-kernels``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SETTINGS = ("default", "dtype float16", "kv int8", "kv fp8")


def markdown(folder: Path) -> list[str]:
    """The lines of both tables; none where there are no samples."""
    return [*_models(folder), *_alone(folder)]


def _models(folder: Path) -> list[str]:
    """Each model and change once: of the newest file in which it ran, or else of the newest that says why not.

    Why a kernel did not run stands there only where it ran on no model.
    """
    found: dict[tuple[str, str], tuple[bool, str, str]] = {}  # (ran, measured, line)
    for path in sorted(folder.glob("untried*.json")):
        made = json.loads(path.read_text())
        model = made.get("model", "tiny")
        for name, row in made.items():
            if name in _SETTINGS or name.startswith("kernel "):
                line = f"{name.removeprefix('kernel ')} | {_whole_model(row, name)}"
            elif name == "invariant":
                line = f"{_company(row)} | {_whole_model(row.get('times', row), name)}"
            else:
                continue
            one = "failed" not in row, made.get("measured", ""), f"| {model} | {line} | {path.name} |"
            found[model, name] = max(found.get((model, name), (False, "", "")), one)
    ran = {name for (_, name), (did, _, _) in found.items() if did and name.startswith("kernel ")}
    lines = [line for (_, name), (did, _, line) in found.items() if did or name not in ran]
    head = [
        "Whole models, logits after chunks and single tokens; errors are parts of the largest logit.",
        "",
        "| model | changed | ran | error beside float32 | first token, ms | further token, ms | raw |",
        "|---" * 7 + "|",
    ]
    return ["", "## One kernel or setting changed", "", *head, *lines] if lines else []


def _company(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return "--batch-invariant"
    same = all([*row["equal_by_rows"].values(), row["again"], row["chunks"]])
    return "--batch-invariant, " + ("bit-equal in any company" if same else "**bits differ**")


def _whole_model(row: Mapping[str, Any], name: str) -> str:
    if "failed" in row:
        return f"not run: {str(row['failed']).rpartition('but ')[2].replace('|', '/')[:160]} | | |"
    kernel = name.partition("=")[2]
    ran = "yes" if not kernel or kernel in row["kernels"] else "**chosen by no op**"
    return f"{ran} | {max(row['relative_error']):.1e} | {row['first_ms']:.2f} | {row['further_ms']:.3f}"


def _alone(folder: Path) -> list[str]:
    found: dict[tuple[str, str], str] = {}  # by what became of a kernel and its name: the line of the first file
    for path in sorted(folder.glob("cuda_kernels*.json")):
        for word, name, line in _suite(path):
            found.setdefault((word, name), line)
    told = [key for word in ("timed", "failed", "skipped") for key in found if key[0] == word]
    lines = [found[word, name] for word, name in told if word != "skipped" or ("timed", name) not in found]
    head = [
        "The largest rate of each over its sizes, and the line through its times; the raw file has every sample.",
        "",
        "| kernel | sizes | GB/s | TFLOP/s | t_fixed, us | slope, GB/s | raw |",
        "|---" * 7 + "|",
    ]
    return ["", "## Kernels by themselves", "", *head, *lines] if lines else []


def _suite(path: Path) -> Iterator[tuple[str, str, str]]:
    """What became of it ("timed", "failed" or "skipped"), the kernel, its line."""
    made = json.loads(path.read_text())
    for name in sorted({row["kernel"] for row in made["rows"]}):
        rows = [row for row in made["rows"] if row["kernel"] == name]
        fit = made["fits"].get(name)
        line = f"{fit['t_fixed_us']:.1f} | {fit['slope_gb_per_s']:.0f}" if fit else " | "
        most = [max(row[unit] for row in rows) for unit in ("gb_per_s", "tflop_per_s")]
        yield "timed", name, f"| {name} | {len(rows)} | {most[0]:.0f} | {most[1]:.1f} | {line} | {path.name} |"
    for word in ("failed", "skipped"):
        for name, reason in sorted(made.get(word, {}).items()):
            yield word, name, f"| {name} | {word}: {reason.replace('|', '/')[:160]} | | | | | {path.name} |"
