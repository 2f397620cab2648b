"""Medians, ratios and shares of bandwidth of a comparison, worked out from its raw samples, and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cacheir.bench.against.cells import ANSWERS, CELLS, SHORT
from cacheir.bench.against.contestants import OURS
from cacheir.bench.timing import percentile

_WORK = {cell.name: cell.work for cell in (*CELLS, *SHORT, *ANSWERS)}
_STEPS = {cell.name: cell.tokens for cell in (*CELLS, *SHORT) if cell.kind == "decode"}


def summaries(samples: Sequence[Mapping[str, Any]], decode_bytes: int) -> list[dict[str, Any]]:
    """A row for each engine of each cell, ours first; losing rows are rows like others.

    ``tokens_per_s`` is the median of the counted samples: the valid ones, or all where none is valid (``valid`` is
    false then). ``our_ratio`` is how many times as fast ours is: the median over the rounds of which both samples
    count; ``ratio_of_medians`` is from the two medians. ``probe_share`` is the median share of the probe's bandwidth
    that ``decode_bytes`` a step make, in decode alone. Samples of screening count for no row.
    """
    rows = []
    for cell in _in_order(sample["cell"] for sample in samples):
        of_cell = [sample for sample in samples if sample["cell"] == cell and sample["part"] == "round"]
        ours = _counted([sample for sample in of_cell if sample["engine"] == OURS])
        for label in sorted(_in_order(sample["label"] for sample in of_cell), key=lambda label: label != OURS):
            taken = [sample for sample in of_cell if sample["label"] == label]
            rows.append(_row(cell, label, taken, ours, decode_bytes))
    return rows


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a table; every engine that was asked for is in it, with the reason where it did not run."""
    around = report["environment"]
    lines = [
        f"## {report['model']}",
        "",
        f"{report['threads']} threads, {around['cpu']['model']}, {_median_probe(report):.0f} GB/s read by the probe "
        f"(median), commit {around['cacheir']['commit'][:12] or 'unknown'}.",
        "",
        "| cell | engine | tokens/s | ours is faster by | of the probe | samples that count |",
        "|---|---|---|---|---|---|",
    ]
    for row in summaries(report["samples"], report["decode_bytes"]):
        ratio = "" if row["our_ratio"] is None or row["label"] == OURS else f"{row['our_ratio']:.2f}x"
        share = "" if row["probe_share"] is None else f"{row['probe_share']:.0%}"
        counts = f"{row['counted']} of {row['samples']}" + ("" if row["valid"] else ", none valid")
        lines.append(f"| {row['cell']} | {row['label']} | {row['tokens_per_s']:.1f} | {ratio} | {share} | {counts} |")
    refusals = [(cell, label, why) for cell, said in report["refused"].items() for label, why in said.items()]
    refusals += [("all", name, why) for name, why in report["missing"].items()]
    lines += [f"| {cell} | {label} | did not run: {why.replace('|', '/')} | | | |" for cell, label, why in refusals]
    return "\n".join(lines) + "\n"


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
    shares = [
        decode_bytes * _STEPS[cell] / _seconds(sample) / ((sample["probe_before"] + sample["probe_after"]) / 2)
        for sample in counted
        if cell in _STEPS
    ]
    return {
        "cell": cell,
        "label": label,
        "tokens_per_s": rate,
        "our_ratio": percentile(paired, 50) if paired else None,
        "ratio_of_medians": our_rate / rate if ours and rate else None,
        # A batch reads the weights once for all of its sequences, and more keys than the account has.
        "probe_share": percentile(shares, 50) if shares and _WORK[cell] == _STEPS[cell] else None,
        "samples": len(taken),
        "counted": len(counted),
        "valid": any(not sample["invalid"] for sample in taken),
    }


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
