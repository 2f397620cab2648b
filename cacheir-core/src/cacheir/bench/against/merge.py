"""Joins two reports of one model: what was measured anew takes the place of what it measured, all else stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cacheir.bench.against.contestants import OURS
from cacheir.bench.against.tables import runs_of, summaries


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """``now`` with what ``before`` holds besides: cells that are not in ``now``, and peers that a cell had then alone.

    Such a peer keeps our samples of its own run, so that its ratio is one of engines that ran in turn. A cell of which
    none of our samples counts now stays as it was, if some did.
    """
    spoilt = _cells_that_count(before) - _cells_that_count(now)
    now = {**now, "samples": [sample for sample in now["samples"] if sample["cell"] not in spoilt]}
    measured = {(sample["cell"], sample["engine"]) for sample in now["samples"]}
    peers_stay = {
        (sample["cell"], sample.get("run", ""))
        for sample in before.get("samples", [])
        if sample["engine"] != OURS and (sample["cell"], sample["engine"]) not in measured
    }
    kept = [
        sample
        for sample in before.get("samples", [])
        if (sample["cell"], sample["engine"]) not in measured
        or (sample["engine"] == OURS and (sample["cell"], sample.get("run", "")) in peers_stay)
    ]
    samples = [*kept, *now["samples"]]
    runs = {**runs_of(before), **now["runs"]}
    runs = {run: said for run, said in runs.items() if run in {sample.get("run", "") for sample in samples}}
    return {
        **now,
        "samples": samples,
        "runs": runs,
        "engines": {**before.get("engines", {}), **now["engines"]},
        "missing": _without(before.get("missing", {}), now["engines"]) | now["missing"],
        "answers": _answers(before, now, measured),
        "refused": _refused(before.get("refused", {}), now),
        "rows": summaries(samples, runs),
    }


def _cells_that_count(report: Mapping[str, Any]) -> set[str]:
    """Those of which at least one of our samples in a round is valid."""
    ours = [each for each in report.get("samples", []) if each["engine"] == OURS and each["part"] == "round"]
    return {sample["cell"] for sample in ours if not sample["invalid"]}


def _answers(
    before: Mapping[str, Any], now: Mapping[str, Any], measured: Collection[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Rows about answers: those of ``before`` that are of no engine and cell of now."""
    kept = [row for row in before.get("answers", []) if (row["cell"], row["label"].partition(", ")[0]) not in measured]
    return [*kept, *now.get("answers", [])]


def _refused(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {cell: dict(said) for cell, said in now["refused"].items()}
    for cell, said in before.items():
        labels = [sample["label"] for sample in now["samples"] if sample["cell"] == cell]
        kept = _without(said, labels) | found.get(cell, {})
        if kept:
            found[cell] = kept
    return found


def _without(said: Mapping[str, str], labels: Iterable[str]) -> dict[str, str]:
    """Reasons of those that did not run; ``labels`` have run since, and an engine's name stands for its settings."""
    ran = {name for label in labels for name in (label, label.partition(", ")[0])}
    return {label: why for label, why in said.items() if label not in ran}
