"""An explanation for people and as JSON: a row for each node, sums that add up to the step, and what was not taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cacheir.bench.explain import Explanation, Line
from cacheir.cli.output import size_text, table
from cacheir.schedule.record_json import to_json

_NUMBERS = ("CALLS", "BYTES", "OPERATIONS", "FLOOR", "PREDICTED", "MEASURED", "OF ROOFLINE")


def explanation_text(found: Explanation, *, node: str = "") -> str:
    """The table, then the kernels that were not taken; with ``node`` the candidates of that node alone."""
    shape = found.shape
    what = f"{shape.tokens} tokens" if shape.mode == "prefill" else f"{shape.rows} row{'' if shape.rows == 1 else 's'}"
    head = f"a {shape.mode} step of {what} with {shape.keys} keys each, on {backend_text(found.backend, found.threads)}"
    lines = [line for line in found.lines if not node or line.node.node == node]
    rows = [_row(line) for line in lines]
    if not node:
        rows += _sums(found)
    parts = [
        head,
        table(("GRAPH", "NODE", "OP", "KERNEL", *_NUMBERS), rows, right=_NUMBERS),
        _candidates(lines) if node else _losers(lines),
        "\n".join(f"note: {note}" for note in found.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def explanation_json(found: Explanation, *, node: str = "") -> dict[str, Any]:
    """The same as JSON values; times in seconds, null where they are not known."""
    return {
        "backend": found.backend,
        "threads": found.threads,
        "step": to_json(found.shape),
        "nodes": [
            {
                **to_json(line.node),
                "total": to_json(line.node.total),
                "floor_s": line.floor_s,
                "predicted_s": line.predicted_s,
                "measured_s": line.measured_s,
                "of_roofline": _fraction(line.floor_s, line.measured_s),
                "within": line.within,
            }
            for line in found.lines
            if not node or line.node.node == node
        ],
        "rest": {"predicted_s": found.rest_predicted_s, "measured_s": found.rest_measured_s},
        "totals": {
            "floor_s": found.floor_s,
            "predicted_s": found.predicted_s,
            "measured_s": found.measured_s,
            "of_roofline": _fraction(found.floor_s, found.measured_s),
        },
        "notes": list(found.notes),
    }


def backend_text(backend: str, threads: int | None) -> str:
    """``native with 2 threads``; the name alone where there is no number of threads."""
    return backend if threads is None else f"{backend} with {threads} thread{'' if threads == 1 else 's'}"


def seconds_text(seconds: float | None) -> str:
    """A time for people: ``412 us``, ``3.81 ms``; "" where it is not known."""
    if seconds is None:
        return ""
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"


def _row(line: Line) -> tuple[object, ...]:
    node, total = line.node, line.node.total
    measured = f"in %{line.within}" if line.within and not line.measured_s else seconds_text(line.measured_s)
    return (
        f"@{node.graph}",
        f"%{node.node}",
        node.op,
        node.kernel or "-",
        node.calls,
        size_text(total.bytes),
        _count(total.operations),
        seconds_text(line.floor_s),
        seconds_text(line.predicted_s),
        measured,
        _percent(line.floor_s, line.measured_s),
    )


def _sums(found: Explanation) -> list[tuple[object, ...]]:
    nbytes = sum(line.node.total.bytes for line in found.lines)
    operations = sum(line.node.total.operations for line in found.lines)
    calls = sum(line.node.calls for line in found.lines)
    times = (seconds_text(found.floor_s), seconds_text(found.predicted_s), seconds_text(found.measured_s))
    rest = ("", seconds_text(found.rest_predicted_s), seconds_text(found.rest_measured_s), "")
    return [
        ("", "", "what no node accounts for", "", "", "", "", *rest),
        (
            *("", "", "the step", "", calls, size_text(nbytes), _count(operations)),
            *times,
            _percent(found.floor_s, found.measured_s),
        ),
    ]


def _losers(lines: Iterable[Line]) -> str:
    """Each kernel that was not taken, once for each reason."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        for loser in line.node.losers:
            named = nodes.setdefault((loser.kernel, loser.refusal), [])
            if f"%{line.node.node}" not in named:
                named.append(f"%{line.node.node}")
    if not nodes:
        return ""
    found = [f"  {kernel}: {why} ({', '.join(named)})" for (kernel, why), named in nodes.items()]
    return "not taken:\n" + "\n".join(found)


def _candidates(lines: Iterable[Line]) -> str:
    """Of one node: the kernel that runs it and why, and each other with its reason and its cost."""
    rows = []
    for line in lines:
        node = line.node
        rows.append((f"@{node.graph}", node.kernel or "-", "taken", *_cost(node.cost), node.reason))
        rows += [(f"@{node.graph}", loser.kernel, "not taken", *_cost(loser), loser.refusal) for loser in node.losers]
    headings = ("GRAPH", "KERNEL", "STATE", "BYTES", "OPERATIONS", "BECAUSE")
    return "one launch, by candidate\n" + table(headings, rows, right=("BYTES", "OPERATIONS"))


def _cost(cost: Any) -> tuple[str, str]:
    return size_text(cost.bytes), _count(cost.operations)


def _count(number: float) -> str:
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{number:.0f}" if not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.2f} G"


def _fraction(floor: float | None, measured: float | None) -> float | None:
    return floor / measured if floor is not None and measured else None


def _percent(floor: float | None, measured: float | None) -> str:
    fraction = _fraction(floor, measured)
    return "" if fraction is None else f"{100 * fraction:.0f} %"
