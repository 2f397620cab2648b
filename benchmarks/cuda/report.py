"""Writes report.json, report.md, beside.md and their charts from the raw samples: python benchmarks/cuda/report.py.

Raw samples are shape_*.json (``shape_run.py``), beside_*.json (``beside.py``), decode_chain_*.json
(``decode_chain.py``); for the table of musts (``report_musts.py``) batch_run_MODEL.json, engine_run*.json and
repeats_*.json besides, for those of kernels (``report_kernels.py``) untried*.json and cuda_kernels*.json. Every figure
in the report is worked out from them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report_kernels
import report_musts
from report_charts import bars

HERE = Path(__file__).parent
_WORDS = {True: "met", False: "missed", None: "not measured"}
ASKED = {(must.model, must.what): must.asked for must in report_musts.musts()}
_HEAD = """# The CUDA backend on one H200

Written by `python benchmarks/cuda/report.py` from the raw samples beside it. Random weights of the exact shape,
bfloat16, wall clock with the ids visible to the host, medians. What was predicted, tried and missed, and why:
[notes.md](notes.md); beside vLLM: [beside.md](beside.md).
"""
_BESIDE_HEAD = """# CacheIR beside vLLM on one H200

Written by `python benchmarks/cuda/report.py` from beside_*.json (raw samples of `beside.py`): both engines in turn,
random weights of the exact shape, bfloat16, the same ids in, greedy ids out, prefix cache off. Times are wall clock,
medians; busy is the time in which kernels ran, by torch's profiler, of one run. vLLM's wall clock on this machine is
largely its host's: the last column is its busy time over our wall clock. Random weights leave many close calls: after
the first one that the engines decide otherwise, the rest of an answer differs.

![batch 1](report_batch_1.svg)

![batches](report_batches.svg)
"""


@dataclass(frozen=True)
class Figure:
    """One figure beside what was asked of it; ``asked`` None: nothing was. ``most`` says that less is better."""

    model: str
    what: str
    found: float
    unit: str
    asked: float | None
    most: bool
    samples: int
    file: str

    @property
    def met(self) -> bool | None:
        """Whether it is as asked."""
        if self.asked is None:
            return None
        return self.found <= self.asked if self.most else self.found >= self.asked


def main() -> None:
    """All of the report."""
    figures = [*_shapes(), *{(one.model, one.what): one for one in (*_singles(), *_batches())}.values()]
    besides = [(path, json.loads(path.read_text())) for path in sorted(HERE.glob("beside_*.json"))]
    report = {
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
        "beside": {path.name: _beside(found) for path, found in besides},
        "parity": list(_parity()),
        "musts": report_musts.table(),
    }
    (HERE / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (HERE / "report.md").write_text(_markdown(figures, report["parity"], report["musts"], report["beside"]))
    (HERE / "beside.md").write_text(_beside_markdown(report["beside"]))
    newest = list(_newest(report["beside"]))
    single = [
        (f"{made['model']}, prompt {row['prompt']}, output {row['output']} ({made['peer']})", row["ratio"])
        for made, row in newest
        if row["batch"] == 1
    ]
    (HERE / "report_batch_1.svg").write_text(bars("Times as fast as vLLM at batch 1", single, "x", mark=1.0))
    several = [
        (f"{made['model']}, batch {row['batch']} ({made['peer']}): {who}", row[f"{who}_tokens_per_s"])
        for made, row in newest
        if row["batch"] > 1
        for who in ("ours", "peer")
    ]
    (HERE / "report_batches.svg").write_text(bars("Output tokens a second, 128 in and 128 out", several, ""))
    print(f"{len(figures)} figures, {sum(figure.met is False for figure in figures)} missed")
    print("\n".join(report_musts.counts(report["musts"])))


def _shapes() -> Iterator[Figure]:
    for path in sorted(HERE.glob("shape_*.json")):
        made = json.loads(path.read_text())
        model = made["model"]
        for prompt, row in _rows(made.get("first")):
            what = f"first token at {prompt}"
            count = len(row["samples_ms"])
            middle = statistics.median(row["samples_ms"])
            yield Figure(model, what, middle, "ms", ASKED.get((model, what)), True, count, path.name)
            if prompt == "2048":
                wanted = ASKED.get((model, "prefill of 2048"))
                yield Figure(model, "prefill of 2048", row["tflops"], "TFLOP/s", wanted, False, count, path.name)
        for prompt, row in _rows(made.get("tokens")):
            what, count = f"further token at {prompt}", len(row["samples_ms"])
            must, aim = ASKED.get((model, what)), ASKED.get((model, f"{what}, aim"))
            middle = statistics.median(row["samples_ms"])
            yield Figure(model, what, middle, "ms", must, True, count, path.name)
            if aim is not None:
                yield Figure(model, f"{what}, aim", middle, "ms", aim, True, count, path.name)


def _rows(part: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a part that was measured; one that failed has none."""
    if isinstance(part, dict) and "failed" not in part:
        yield from part.items()


def _beside_files() -> list[tuple[Path, dict[str, Any]]]:
    """The files beside another engine and what they hold, the newest last, so that its figures stay."""
    found = [(path, json.loads(path.read_text())) for path in sorted(HERE.glob("beside_*.json"))]
    return sorted(found, key=lambda one: str(one[1].get("measured", "")))


def _batches() -> Iterator[Figure]:
    for path, made in _beside_files():
        model = report_musts.NAMES.get(made["model"], made["model"])
        for cell in made["cells"]:
            if cell["batch"] > 1 and cell["ours_s"]:
                rate = cell["batch"] * cell["output"] / statistics.median(cell["ours_s"])
                asked = ASKED.get((model, f"batch {cell['batch']}"))
                what = f"batch {cell['batch']}, {cell['prompt']} in, {cell['output']} out"
                yield Figure(model, what, rate, "tokens/s", asked, False, len(cell["ours_s"]), path.name)


def _singles() -> Iterator[Figure]:
    """First and further tokens out of the cells of one prompt beside vLLM: both engines are warm, and in turn."""
    for path, made in _beside_files():
        model = report_musts.NAMES.get(made["model"], made["model"])
        cells = {(cell["prompt"], cell["output"]): cell["ours_s"] for cell in made["cells"] if cell["batch"] == 1}
        for (prompt, output), taken in cells.items():
            if not taken or output != 1:
                continue
            first, count = 1e3 * statistics.median(taken), len(taken)
            asked = ASKED.get((model, f"first token at {prompt}"))
            yield Figure(model, f"first token at {prompt}, beside vLLM", first, "ms", asked, True, count, path.name)
            if cells.get((prompt, 128)):
                each = (1e3 * statistics.median(cells[prompt, 128]) - first) / 127
                must = ASKED.get((model, f"further token at {prompt}"))
                yield Figure(model, f"further token at {prompt}, beside vLLM", each, "ms", must, True, count, path.name)


def _parity() -> Iterator[dict[str, Any]]:
    for path in sorted(HERE.glob("decode_chain_*[!t].json")) + sorted(HERE.glob("shape_*.json")):
        made = json.loads(path.read_text())
        rows = made.get("parity") if isinstance(made, dict) else None
        if isinstance(rows, list):
            yield from ({"model": made["model"], "file": path.name, **row} for row in rows)


def _beside(made: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for cell in made["cells"]:
        if not cell["ours_s"]:
            continue
        ours, peer = (statistics.median(cell[key]) for key in ("ours_s", "peer_s"))
        busy = {key: cell[key]["seconds"] if cell.get(key) else None for key in ("ours_busy", "peer_busy")}
        tokens = cell["batch"] * cell["output"]
        rows.append({
            **{key: cell[key] for key in ("batch", "prompt", "output")}, "ours_ms": 1e3 * ours, "peer_ms": 1e3 * peer,
            "ratio": peer / ours, "samples": len(cell["ours_s"]), "ours_tokens_per_s": tokens / ours,
            "peer_tokens_per_s": tokens / peer, "same_tokens": sum(cell["equal"]) / (len(cell["equal"]) * tokens),
            "peer_busy_ms": None if busy["peer_busy"] is None else 1e3 * busy["peer_busy"],
            "ours_busy_ms": None if busy["ours_busy"] is None else 1e3 * busy["ours_busy"],
            # Our wall clock against the time in which the peer's kernels ran: what would be left of its host's time.
            "ratio_to_busy": None if busy["peer_busy"] is None else busy["peer_busy"] / ours,
        })  # fmt: skip
    single = [row for row in rows if row["batch"] == 1]
    busy_ratios = [row["ratio_to_busy"] for row in single if row["ratio_to_busy"]]
    return {
        "model": made["model"], "peer": made["peer"], "version": made["peer_said"].get("vllm", ""), "rows": rows,
        "geometric_mean": statistics.geometric_mean(row["ratio"] for row in single) if single else None,
        "geometric_mean_to_busy": statistics.geometric_mean(busy_ratios) if busy_ratios else None,
        "measured": made.get("measured", ""), "partings": made.get("partings"), "telemetry": made.get("telemetry", []),
    }  # fmt: skip


def _newest(besides: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each cell beside each peer once, of the newest file that has it: its file's content, and the cell."""
    made: dict[tuple[Any, ...], tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    for one in sorted(besides.values(), key=lambda one: str(one["measured"])):
        for row in one["rows"]:
            made[one["model"], one["peer"], row["batch"], row["prompt"], row["output"]] = one, row
    yield from made.values()


def _headline(besides: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Geometric means over the cells of one prompt, of each model's newest run beside vLLM's better mode."""
    newest: dict[str, Mapping[str, Any]] = {}
    for made in sorted(besides.values(), key=lambda made: str(made["measured"])):
        if made["peer"] == "vllm-in-process" and made["geometric_mean"]:
            newest[made["model"]] = made
    lines = []
    for model, made in newest.items():
        cells = [row for row in made["rows"] if row["batch"] == 1]
        busy = made["geometric_mean_to_busy"]
        lines.append(
            f"- {model}, batch 1, {len(cells)} cells: {made['geometric_mean']:.2f}x as fast as vLLM "
            f"{made['version']} by the wall clock, "
            + (f"{busy:.2f}x its device-busy time" if busy else "its device-busy time not measured")
        )
    return lines


def _missed(musts: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each must and aim that is not met, beside those that were not run."""
    for row in musts:
        if row["kind"] != "told" and row["state"] == "missed":
            asked = f"{'at most' if row['most'] else 'at least'} {row['asked']:g} asked"
            what = row["what"].removesuffix(", aim")
            yield f"- {row['kind']} missed: {row['model']}, {what}: {row['found']:.3f} {row['unit']}, {asked}"


def _markdown(
    figures: list[Figure],
    parity: list[dict[str, Any]],
    musts: list[dict[str, Any]],
    besides: Mapping[str, Mapping[str, Any]],
) -> str:
    lines = [
        _HEAD,
        *report_musts.counts(musts),
        *_missed(musts),
        "",
        *_headline(besides),
        "",
        "## Must by must",
        "",
        *report_musts.markdown(musts),
        "",
        "## All figures",
        "",
        "| model | what | found | asked | met | samples | raw |",
        "|---" * 7 + "|",
    ]
    for figure in figures:
        sign = "at most" if figure.most else "at least"
        asked = "" if figure.asked is None else f"{sign} {figure.asked:g}"
        met = {True: "yes", False: "**no**", None: ""}[figure.met]
        found = f"{figure.found:.0f}" if figure.found >= 100 else f"{figure.found:.3f}"
        lines.append(
            f"| {figure.model} | {figure.what} | {found} {figure.unit} | {asked} | {met} | {figure.samples} "
            f"| {figure.file} |"
        )
    lines += ["", "Greedy decode beside float32 torch on the same weights and pages, forced by its tokens:", ""]
    lines += ["| model | context | steps | relative error | tokens equal | left out | wrong of the clear ones |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in parity:
        lines.append(
            f"| {row['model']} | {row['context']} | {row['steps']} | {row['relative_error']:.1e} | "
            f"{row['tokens_equal']} | {row['share_left_out']:.0%} | {row['wrong_clear_positions']} |"
        )
    return "\n".join([*lines, *report_kernels.markdown(HERE)]) + "\n"


def _beside_markdown(besides: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [_BESIDE_HEAD]
    for name, made in besides.items():
        lines += [
            f"## {made['model']} beside {made['peer']} {made['version']}".rstrip(),
            "",
            f"Raw samples: {name}.",
            "",
        ]
        lines += ["| batch | prompt | output | ours, ms | peer, ms | faster by | tokens/s | samples | same tokens "]
        lines[-1] += "| ours busy, ms | peer busy, ms | peer busy / ours |"
        lines += ["|---" * 12 + "|"]
        for row in made["rows"]:
            busy = [f"{row[key]:.2f}" if row[key] else "" for key in ("ours_busy_ms", "peer_busy_ms", "ratio_to_busy")]
            lines += [
                f"| {row['batch']} | {row['prompt']} | {row['output']} | {row['ours_ms']:.2f} | {row['peer_ms']:.2f} "
                f"| {row['ratio']:.2f}x | {row['ours_tokens_per_s']:.0f} | {row['samples']} | {row['same_tokens']:.0%} "
                f"| {' | '.join(busy)} |"
            ]
        if made["geometric_mean"]:
            said = f"Geometric mean at batch 1: {made['geometric_mean']:.2f}x its wall clock"
            if made["geometric_mean_to_busy"]:
                said += f", {made['geometric_mean_to_busy']:.2f}x its busy time"
            lines += ["", said + "."]
        parted = made["partings"]
        if parted:
            lines += [
                f"Of {parted['answers']} answers {parted['parted']} part; of {parted['judged']} that were judged "
                f"{parted['clear']} do so at a clear place (margin of float32 logits above four times our error, "
                f"{parted['relative_error']:.1e} of the largest logit)."
            ]
        lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
