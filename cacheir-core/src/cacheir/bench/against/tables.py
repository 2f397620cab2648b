"""Medians, ratios and shares of bandwidth of a comparison, worked out from its raw samples, and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cacheir.bench.against.answers import answers_table
from cacheir.bench.against.cells import ANSWERS, CELLS, SHORT
from cacheir.bench.against.contestants import OURS
from cacheir.bench.timing import percentile

_WORK = {cell.name: cell.work for cell in (*CELLS, *SHORT, *ANSWERS)}
_STEPS = {cell.name: cell.tokens for cell in (*CELLS, *SHORT) if cell.kind == "decode"}


def summaries(samples: Sequence[Mapping[str, Any]], runs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each engine of each cell, ours first; losing rows are rows like others.

    ``tokens_per_s`` is the median of the counted samples: the valid ones, or all where none is valid (``valid`` is
    false then). ``our_ratio`` is how many times as fast ours is: the median over the rounds of which both samples
    count; ``ratio_of_medians`` is from the two medians. An engine is compared with our samples of its own run, and
    ``earlier`` says that our row is of a later one. In decode of one sequence ``probe_share`` is the median share of
    the probe's bandwidth that the weights and keys of a step make as the file has them (``decode_bytes`` of ``runs``),
    and ``read_share`` that of the bytes that were really read, where the engine says that it skipped some. Both are
    None for an engine with other weights (``weights``). Samples of screening count for no row.
    """
    rows = []
    for cell in _in_order(sample["cell"] for sample in samples):
        of_cell = [sample for sample in samples if sample["cell"] == cell and sample["part"] == "round"]
        latest = next((_run(sample) for sample in reversed(of_cell) if sample["engine"] == OURS), None)
        for label in sorted(_in_order(sample["label"] for sample in of_cell), key=lambda label: label != OURS):
            taken = [sample for sample in of_cell if sample["label"] == label]
            if label == OURS:
                taken = [sample for sample in taken if _run(sample) == latest]
            run = _run(taken[-1])
            ours = _counted([each for each in of_cell if each["engine"] == OURS and _run(each) == run])
            facts = runs.get(run, {})
            row = _row(cell, label, taken, ours, int(facts.get("decode_bytes", 0)))
            weights = facts.get("engines", {}).get(label, {}).get("weights")
            row |= {"probe_share": None, "read_share": None} if weights else {}
            rows.append({**row, "weights": weights, "run": run, "earlier": latest is not None and run != latest})
    return rows


def runs_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The runs of a report by name; one that was written before they had names is the run ""."""
    if "runs" in report or not report.get("samples"):
        return dict(report.get("runs", {}))
    unnamed = {"commit": report["environment"]["cacheir"]["commit"], "decode_bytes": report["decode_bytes"]}
    return {"": {**unnamed, "engines": report.get("engines", {})}}


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a table; every engine that was asked for is in it, with the reason where it did not run."""
    around = report["environment"]
    lines = [
        f"## {report['model']}",
        "",
        f"{report['threads']} threads, {around['cpu']['model']}, {_median_probe(report):.0f} GB/s read by the probe "
        f"(median), {_commits(report)}.",
        "",
        "| cell | engine | tokens/s | ours is faster by | of the probe | samples that count |",
        "|---|---|---|---|---|---|",
    ]
    for row in summaries(report["samples"], runs_of(report)):
        ratio = "" if row["our_ratio"] is None or row["label"] == OURS else f"{row['our_ratio']:.2f}x"
        ratio += " in an earlier run" if row["earlier"] else ""
        words = [row["cell"], row["label"], f"{row['tokens_per_s']:.1f}", ratio, _shares(row), _counts(row)]
        lines.append(f"| {' | '.join(words)} |")
    refusals = [(cell, label, why) for cell, said in report["refused"].items() for label, why in said.items()]
    refusals += [("all", name, why) for name, why in report["missing"].items()]
    lines += [f"| {cell} | {label} | did not run: {why.replace('|', '/')} | | | |" for cell, label, why in refusals]
    return "\n".join([*lines, *answers_table(report.get("answers", []))]) + "\n"


def _commits(report: Mapping[str, Any]) -> str:
    found = _in_order(run["commit"][:12] or "unknown" for run in runs_of(report).values())
    return f"commit{'s' if len(found) > 1 else ''} {', '.join(found)}"


def _shares(row: Mapping[str, Any]) -> str:
    """``93%``, or ``104% (81% read)`` where fewer bytes were read than a step of the whole file has."""
    whole, read = row["probe_share"], row["read_share"]
    return "" if whole is None else f"{whole:.0%}" if read is None else f"{whole:.0%} ({read:.0%} read)"


def _counts(row: Mapping[str, Any]) -> str:
    said = f"{row['counted']} of {row['samples']}"
    if not row["valid"]:
        return f"{said}, none valid"
    return said if row["heaviest_load"] is None else f"{said}; others took up to {row['heaviest_load']:.0%}"


def _row(
    cell: str, label: str, taken: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]], decode_bytes: int
) -> dict[str, Any]:
    counted = _counted(taken)
    rate = percentile([_rate(sample) for sample in counted], 50)
    our_rate = percentile([_rate(sample) for sample in ours], 50)
    theirs_by_number = {sample["number"]: sample for sample in counted}
    paired = [
        _rate(sample) / _rate(theirs_by_number[sample["number"]])
        for sample in ours
        if sample["number"] in theirs_by_number
    ]
    # A batch reads the weights once for all of its sequences, and more keys than the account has.
    single = cell in _STEPS and _WORK[cell] == _STEPS[cell]
    whole = [_share(sample, decode_bytes) for sample in counted if single and decode_bytes]
    skipped = [sample.get("skipped_bytes") for sample in counted]
    read = [
        _share(sample, decode_bytes - skips / _STEPS[cell])
        for sample, skips in zip(counted, skipped)
        if single and decode_bytes and skips
    ]
    spoilt = [sample["foreign_load"] for sample in taken if sample["invalid"] and sample["foreign_load"] is not None]
    return {
        "cell": cell,
        "label": label,
        "tokens_per_s": rate,
        "our_ratio": percentile(paired, 50) if paired else None,
        "ratio_of_medians": our_rate / rate if ours and rate else None,
        "probe_share": percentile(whole, 50) if whole else None,
        "read_share": percentile(read, 50) if read else None,
        "samples": len(taken),
        "counted": len(counted),
        "valid": any(not sample["invalid"] for sample in taken),
        "heaviest_load": max(spoilt) if spoilt else None,
    }


def _share(sample: Mapping[str, Any], step_bytes: float) -> float:
    """Of the bandwidth of the probe beside the sample, what ``step_bytes`` a step make."""
    bandwidth = (sample["probe_before"] + sample["probe_after"]) / 2
    return float(step_bytes * _STEPS[sample["cell"]] / _seconds(sample) / bandwidth)


def _run(sample: Mapping[str, Any]) -> str:
    """Which run a sample is of; "" for one of before runs had names."""
    return str(sample.get("run", ""))


def _counted(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [sample for sample in samples if not sample["invalid"]] or list(samples)


def _seconds(sample: Mapping[str, Any]) -> float:
    return percentile(sample["seconds"], 50)


def _rate(sample: Mapping[str, Any]) -> float:
    return _WORK[sample["cell"]] / _seconds(sample)


def _median_probe(report: Mapping[str, Any]) -> float:
    return percentile([sample["probe_after"] for sample in report["samples"]], 50) / 1e9


def _in_order(names: Iterator[str] | Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
