"""Each must and aim of the issue beside what the raw samples here say of it; what none says is "not measured".

A kernel or adapter whose library could not be had is "not run", with the reason of its refusal. An aim that is missed
is no must that is missed. The issue's geometric mean is read as that of all 36 cells; those of each model are told.

A figure is taken from the newest of its sources, better or not: each file says when it was ``measured``. Older files,
which do not, come last, in the order of ``measured``'s readers. A time of fewer samples than the 20 that are asked does
not take the place of one that has them. A figure of notes.md alone, whose samples were not kept or are of kernels of
before, is told beside, and does not count as measured.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SMALL = ("qwen3-0.6b", "qwen3-1.7b", "r1-distill-1.5b")
THREE = "the three"
NAMES = {"r1-distill-qwen-1.5b": "r1-distill-1.5b"}
FIRST_MS = {"qwen3-0.6b": (1.2, 7.0), "qwen3-1.7b": (1.8, 15.0), "r1-distill-1.5b": (1.8, 14.0)}
TOKEN_MS = {
    "qwen3-0.6b": 0.52, "qwen3-1.7b": 1.05, "r1-distill-1.5b": 1.00, "qwen2.5-7b": 3.5, "llama-3.1-8b": 3.75,
}  # fmt: skip
AIM_MS = {"qwen3-0.6b": 0.43, "qwen3-1.7b": 0.92, "r1-distill-1.5b": 0.84}
BATCH_TOKENS = {"qwen3-0.6b": (14000, 27500), "qwen3-1.7b": (7000, 18000), "r1-distill-1.5b": (8500, 28000)}
COMPANIES = (
    "batch 1", "batch 4", "batch 8", "batch 16", "chunks of 64", "prefix hits", "forks", "preempted", "spilled",
)  # fmt: skip
FLOAT16 = "float16: logits' error beside float32, part of the largest"
# Once with matrices scaled alone, and once with calmer layers and answers planted in the head (``clear_models.py``).
LOGITS = "logits of chunks beside float32"
LOGITS_PLANTED = f"{LOGITS}, answers planted in the head"
ROWS_PARTS = ("products", "attention", "prompt", "ends", "step")  # of rows_chain.py, as calls.sh asks for them
CHECKED = [
    f"{tool} {part}"
    for tool in ("memcheck", "racecheck")
    for part in ("launches", "graphs", "ops", "qwen3-0.6b", "qwen3-1.7b", "r1-distill-1.5b", "llama-3.1-8b")
]
FORCED = (
    "paged_attention_prefill=cuda.adapter.flash_attention_prefill",
    "paged_attention_prefill=cuda.adapter.flash_attention_vllm_prefill",
    "paged_attention_prefill=cuda.adapter.flashinfer_prefill",
    "paged_attention_decode=cuda.adapter.flash_attention_vllm_decode",
    "paged_attention_decode=cuda.adapter.flashinfer_batch_decode",
    "paged_attention_decode=cuda.adapter.flashinfer_single_decode",
    "rms_norm=cuda.cpp.rms_norm", "linear=cuda.cpp.linear", "fused_swiglu=cuda.cpp.fused_swiglu",
    "paged_attention_decode=cuda.cpp.paged_attention_decode_batched",
    "paged_attention_decode=cuda.cpp.paged_attention_decode_reduced",
    "fused_rmsnorm_qkv_rope=cuda.cpp.fused_rmsnorm_qkv_rope", "linear=cuda.triton.matmul",
    "paged_attention_prefill=cuda.torch.paged_attention_prefill_sdpa",
)  # fmt: skip
SAMPLES, TIMES = 20, ("batch ", "first token", "further token")  # of each time, and which figures are some
NOTED = {  # model and what -> the figure of notes.md whose samples were not kept
    ("qwen3-0.6b", "batch 8"): 13732, ("qwen3-0.6b", "batch 32"): 24179, ("qwen3-1.7b", "batch 8"): 6780,
    ("qwen3-1.7b", "batch 32"): 15442, ("qwen3-0.6b", "first token at 16"): 1.224,
    ("qwen3-1.7b", "first token at 16"): 1.887, ("qwen2.5-7b", "further token at 512"): 3.550,
    ("qwen3-1.7b", "repeats of 50 that differ, one row"): 0,
    ("r1-distill-1.5b", "repeats of 50 that differ, one row"): 0,
    ("qwen3-1.7b", "kernels of several rows beside float32, ends: wrong"): 0,
    ("qwen3-1.7b", "kernels of several rows beside float32, step: wrong"): 0,
    ("r1-distill-1.5b", "kernels of several rows beside float32, ends: wrong"): 0,
    ("r1-distill-1.5b", "kernels of several rows beside float32, step: wrong"): 0,
    **{("tiny", f"forced {name}: failures"): 0 for name in FORCED if "=cuda.cpp." in name},
    ("tiny", "compute-sanitizer memcheck graphs: errors"): 0,
    ("tiny", "compute-sanitizer racecheck graphs: errors"): 0,
}  # fmt: skip
# Reasons of a forced kernel that was not run: its library is missing, or its switch was off in that file's run.
_MISSING = "is not installed"
_NOT_RUN = (_MISSING, "unless CACHEIR_", "switches on", "the pages hold f32")
_TOLD = 9  # the exit status that next_session.sh asks compute-sanitizer for where it has something to tell
_CUT = 124  # the exit status of what ran into its time limit: it shows nothing


@dataclass(frozen=True)
class Must:
    """``asked`` of ``what``; ``most`` says that less is better. ``part`` is the issue's number.

    ``kind`` is must, aim or told: a figure that is part of a must, and is not asked for by itself.
    """

    part: str
    model: str
    what: str
    asked: float
    unit: str
    most: bool = True
    kind: str = "must"


@dataclass(frozen=True)
class Found:
    """A figure, of how many samples, the file that has them, and when that was measured ("" where it does not say)."""

    value: float
    samples: int
    file: str
    measured: str = ""


def musts() -> Iterator[Must]:
    """Every must that is a figure, in the issue's order."""
    yield Must("start", "qwen3-0.6b", "artifact to first token", 4.0, "s")
    yield Must("engine", "qwen3-0.6b", "host's stall a step, 1 row", 15, "us")
    yield Must("engine", "qwen3-0.6b", "host's stall a step, 64 rows", 150, "us")
    for model in SMALL:
        yield Must("1", model, "clear positions wrong, one row", 0, "")
        yield Must("1", model, "share of positions left out, one row", 0.05, "")
        yield Must("1", model, "repeats of 50 that differ, one row", 0, "")
        yield Must("1", model, "repeats of 50 that differ, 8 and 32 rows", 0, "")
        yield Must("1", model, "repeats of sampled batches that differ", 0, "")
        for part in ROWS_PARTS:
            yield Must("1", model, f"kernels of several rows beside float32, {part}: wrong", 0, "")
        for what in (LOGITS, LOGITS_PLANTED):
            yield Must("1", model, f"{what}: clear positions wrong", 0, "")
            yield Must("1", model, f"{what}: share of positions left out", 0.05, "")
    yield Must("1", "qwen3-0.6b", FLOAT16, 0.01, "")
    yield Must("1", "qwen3-0.6b", "share of positions left out, all companies", 0.05, "")
    for company in COMPANIES:
        yield Must("1", "qwen3-0.6b", f"{company}: answers that part at a clear place", 0, "")
        yield Must("1", "qwen3-0.6b", f"{company}: bits differ under --batch-invariant", 0, "")
    for model in SMALL:
        yield Must("2", model, "least of 12 cells, times as fast as vLLM", 1.0, "x", most=False)
        yield Must("2", model, "samples of the cell that has fewest", 20, "", most=False)
        yield Must("2", model, "geometric mean, times as fast as vLLM", 3.0, "x", most=False, kind="told")
        yield Must("2", model, "further token at 512", TOKEN_MS[model], "ms")
        yield Must("2", model, "further token at 512, aim", AIM_MS[model], "ms", kind="aim")
        for prompt, asked in zip((16, 2048), FIRST_MS[model]):
            yield Must("2", model, f"first token at {prompt}", asked, "ms")
    yield Must("2", THREE, "geometric mean of 36 cells, times as fast as vLLM", 3.0, "x", most=False)
    for model in ("qwen2.5-7b", "llama-3.1-8b"):
        yield Must("3", model, "further token at 512", TOKEN_MS[model], "ms")
        yield Must("3", model, "further token at 512, times as fast as vLLM", 1.0, "x", most=False)
    for model in SMALL:
        for batch, rate in zip((8, 32), BATCH_TOKENS[model]):
            yield Must("4", model, f"batch {batch}", rate, "tokens/s", most=False)
        yield Must("4", model, "batch 128, times as fast as vLLM", 1.0, "x", most=False)
    yield Must("5", "llama-3.1-8b", "prefill of 2048", 540, "TFLOP/s", most=False)
    for name in FORCED:
        yield Must("kernels", "tiny", f"forced {name}: failures", 0, "")
    for name in CHECKED:
        yield Must("kernels", "tiny", f"compute-sanitizer {name}: errors", 0, "")


def table(folder: Path = HERE) -> list[dict[str, Any]]:
    """A row for each must: asked, found, met (None where nothing was found), samples, file, and what notes.md has.

    ``state`` is met, missed, not run or not measured; ``reason`` says why it was not run.
    """
    found, refused = measured(folder), missing_libraries(folder)
    rows = []
    for must in musts():
        one = found.get((must.model, must.what.removesuffix(", aim")))
        met = None if one is None else one.value <= must.asked if must.most else one.value >= must.asked
        reason, file = (None, one.file) if one else refused.get(must.what, (None, None))
        state = {True: "met", False: "missed", None: "not run" if reason else "not measured"}[met]
        rows.append({
            "part": must.part, "kind": must.kind, "model": must.model, "what": must.what, "asked": must.asked,
            "unit": must.unit, "most": must.most, "found": one.value if one else None, "met": met, "state": state,
            "reason": reason, "samples": one.samples if one else 0, "file": file,
            "noted": NOTED.get((must.model, must.what)),
        })  # fmt: skip
    return rows


def counts(rows: list[dict[str, Any]]) -> list[str]:
    """How many musts, then how many aims, are in each state: a line each."""
    lines = []
    for kind in ("must", "aim"):
        states = [row["state"] for row in rows if row["kind"] == kind]
        each = ", ".join(f"{states.count(state)} {state}" for state in ("met", "missed", "not run", "not measured"))
        lines.append(f"- {len(states)} {kind}s: {each}")
    return lines


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """The table's lines."""
    lines = ["| part | model | must | asked | measured | met | samples | raw | notes.md alone |"]
    lines += ["|---" * 9 + "|"]
    for row in rows:
        asked = f"{'at most' if row['most'] else 'at least'} {row['asked']:g} {row['unit']}".rstrip()
        if row["kind"] == "told":
            asked = f"({asked}, all 36 cells together)"
        found = "**not measured**" if row["found"] is None else f"{_figure(row['found'])} {row['unit']}".rstrip()
        if row["reason"]:
            found = f"not run: {row['reason']}"
        met = {"met": "yes", "missed": "**no**" if row["kind"] == "must" else "no"}.get(row["state"], "")
        noted = "" if row["noted"] is None or row["found"] is not None else f"{row['noted']:g}"
        lines.append(
            f"| {row['part']} | {row['model']} | {row['what']} | {asked} | {found} "
            f"| {'' if row['kind'] == 'told' else met} | {row['samples'] or ''} | {row['file'] or ''} | {noted} |"
        )
    return lines


def missing_libraries(folder: Path) -> dict[str, tuple[str, str]]:
    """By the must of a forced kernel: why no library was there to run it, in words, and the file that says so."""
    made: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.glob("untried*.json")):
        given = json.loads(path.read_text())
        for name in FORCED:
            row = given.get(f"kernel {name}")
            if isinstance(row, dict) and _MISSING in row.get("failed", "") and "vllm" not in name:  # that one is there
                made[f"forced {name}: failures"] = row["failed"].rpartition("but ")[2], path.name
    return made


def measured(folder: Path) -> dict[tuple[str, str], Found]:
    """By model and what, the newest that there is; of those that do not say when, the first."""
    made: dict[tuple[str, str], Found] = {}
    readers = (
        ("batch_run_q*.json", _batch_run), ("batch_run_r1*.json", _batch_run), ("shape_*.json", _shape),
        ("decode_chain_*[!t].json", _chain), ("beside_vllm-in-process*.json", _beside), ("beside_*.json", _beside),
        ("engine_run_host.json", _engine), ("engine_run*.json", _engine), ("repeats_*.json", _repeats),
        ("untried*.json", _untried),
    )  # fmt: skip
    for pattern, read in readers:
        for path in sorted(folder.glob(pattern)):
            given = json.loads(path.read_text())
            if isinstance(given, dict):
                when = given.get("measured", "")
                stem = path.stem.removeprefix("batch_run_").removeprefix("shape_")
                for model, what, value, samples in read(given, stem):
                    key = NAMES.get(model, model), what
                    if key not in made or (when > made[key].measured and not _too_few(what, samples, made[key])):
                        made[key] = Found(value, samples, path.name, when)
    means = [made.get((model, "geometric mean, times as fast as vLLM")) for model in SMALL]
    each = [mean for mean in means if mean is not None]
    if len(each) == len(SMALL):  # of twelve cells each
        value = statistics.geometric_mean(mean.value for mean in each)
        names = ", ".join(mean.file for mean in each)
        made[THREE, "geometric mean of 36 cells, times as fast as vLLM"] = Found(
            value, min(mean.samples for mean in each), names
        )
    for path in sorted(folder.glob("sanitized_*.txt")):
        text = path.read_text()
        said = re.search(r"^(\w+ [\w.-]+): exit status (\d+)$", text, re.MULTILINE)
        if said and int(said[2]) != _CUT:
            errors = re.search(r"SUMMARY: .*?(\d+) errors?\b", text)  # racecheck tells warnings besides
            own = errors and int(said[2]) in (0, _TOLD)
            value = int(errors[1]) if errors and own else int(said[2])
            made["tiny", f"compute-sanitizer {said[1]}: errors"] = Found(value, 1, path.name)
    for path in sorted(folder.glob("rows_chain_*.txt")):
        model, said_of = path.stem.removeprefix("rows_chain_"), []
        for line in path.read_text().splitlines():
            said_of.append(line)
            part = line.removesuffix(" is over")
            if part in ROWS_PARTS:  # a part that was cut, or that failed half-way, shows nothing
                wrong, right = (sum(each.startswith(word) for each in said_of) for word in ("WRONG", "ok   "))
                what = f"kernels of several rows beside float32, {part}: wrong"
                made[model, what] = Found(wrong, wrong + right, path.name)
                said_of = []
    return made


def _too_few(what: str, samples: int, there: Found) -> bool:
    """Whether a time has fewer samples than are asked, and than what is ``there``."""
    return what.startswith(TIMES) and samples < min(SAMPLES, there.samples)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3f}".rstrip("0").rstrip(".")


Figures = Iterator[tuple[str, str, float, int]]  # model, what, value, samples


def _part(made: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A row of a run; one that failed is empty."""
    found = made.get(name)
    return found if isinstance(found, dict) and "failed" not in found else {}


def _batch_run(made: Mapping[str, Any], stem: str) -> Figures:
    for batch, row in _part(made, "throughput").items():
        if batch.isdigit():
            taken = row["samples_s"][3:]
            yield stem, f"batch {batch}", int(batch) * 128 / statistics.median(taken), len(taken)
    for prompt, row in _part(made, "first_tokens").items():
        if prompt.isdigit():
            taken = row["samples_ms"][3:]
            yield stem, f"first token at {prompt}", statistics.median(taken), len(taken)


def _shape(made: Mapping[str, Any], stem: str) -> Figures:
    for prompt, row in _part(made, "first").items():
        count = len(row["samples_ms"])
        yield stem, f"first token at {prompt}", statistics.median(row["samples_ms"]), count
        yield stem, f"prefill of {prompt}", row["tflops"], count
    for prompt, row in _part(made, "tokens").items():
        yield stem, f"further token at {prompt}", statistics.median(row["samples_ms"]), len(row["samples_ms"])
    for batch, row in _part(made, "throughput").items():
        rate = 128e3 * int(batch) / statistics.median(row["samples_ms"])
        yield stem, f"batch {batch}", rate, len(row["samples_ms"])


def _chain(made: Mapping[str, Any], stem: str) -> Figures:
    model = made.get("model", stem)
    for prompt, row in _part(made, "wall").items():
        if prompt.isdigit():
            taken = row["tpot_samples"]
            yield model, f"further token at {prompt}", statistics.median(taken), len(taken)
    parity = made.get("parity")
    if isinstance(parity, list) and parity:
        steps = sum(row["steps"] for row in parity)
        yield model, "clear positions wrong, one row", sum(row["wrong_clear_positions"] for row in parity), steps
        yield model, "share of positions left out, one row", max(row["share_left_out"] for row in parity), steps
    repeats = _part(made, "repeats")
    if repeats:
        differing = sum(row["differing"] for row in repeats.values())
        yield model, "repeats of 50 that differ, one row", differing, sum(row["times"] for row in repeats.values())


def _beside(made: Mapping[str, Any], stem: str) -> Figures:
    model = made["model"]
    cells = {(row["batch"], row["prompt"], row["output"]): row for row in made["cells"] if row["ours_s"]}
    middles = {key: [statistics.median(row[who]) for who in ("ours_s", "peer_s")] for key, row in cells.items()}
    ratios = {key: theirs / ours for key, (ours, theirs) in middles.items()}
    single = {key: ratio for key, ratio in ratios.items() if key[0] == 1}
    if len(single) == 12:
        fewest = min(len(cells[key]["ours_s"]) for key in single)
        yield model, "least of 12 cells, times as fast as vLLM", min(single.values()), fewest
        yield model, "samples of the cell that has fewest", fewest, fewest
        yield model, "geometric mean, times as fast as vLLM", statistics.geometric_mean(single.values()), fewest
    first, last = middles.get((1, 512, 1)), middles.get((1, 512, 128))
    if first and last:
        ours, theirs = (1e3 * (whole - one) / 127 for one, whole in zip(first, last))
        count = len(cells[1, 512, 128]["ours_s"])
        yield model, "further token at 512", ours, count
        yield model, "further token at 512, times as fast as vLLM", theirs / ours, count
    for (batch, prompt, output), ratio in ratios.items():
        count = len(cells[batch, prompt, output]["ours_s"])
        if batch > 1:
            yield model, f"batch {batch}", batch * output / middles[batch, prompt, output][0], count
            yield model, f"batch {batch}, times as fast as vLLM", ratio, count
        elif output == 1:
            yield model, f"first token at {prompt}", 1e3 * middles[batch, prompt, output][0], count


def _engine(made: Mapping[str, Any], stem: str) -> Figures:
    model = "qwen3-0.6b"
    stalls = [name for name in made if name.startswith("stall")]
    for rows, name in (("1", "1 row"), ("64", "64 rows")):
        found = [_part(made, stall)[rows] for stall in stalls if rows in _part(made, stall)]
        if found:
            yield model, f"host's stall a step, {name}", found[0]["stall_us"], len(found[0]["samples_s"])
    companies, bits, start = _part(made, "companies"), _part(made, "bits"), _part(made, "start")
    if companies:
        yield model, "share of positions left out, all companies", companies["share_left_out"], 24
    if companies and companies["wrong_clear"] == 0:  # told of all companies together
        for company in companies["parted"]:
            yield model, f"{company}: answers that part at a clear place", 0, 16
    for company, equal in bits.get("equal", {}).items():
        yield model, f"{company}: bits differ under --batch-invariant", int(not equal), 16
    if start:
        yield model, "artifact to first token", start["first_token_s"], len(start["samples_s"]) - 1


def _repeats(made: Mapping[str, Any], stem: str) -> Figures:
    model, repeats, sampled = made["model"], _part(made, "repeats"), _part(made, "sampled")
    if repeats:
        differing = sum(repeats["of"] - repeats[name] for name in ("batch 8", "batch 32", "prompt 16"))
        yield model, "repeats of 50 that differ, 8 and 32 rows", differing, 3 * repeats["of"]
    logits = _part(made, "logits")
    if logits:
        what = LOGITS_PLANTED if logits.get("answers_planted") else LOGITS
        count = len(logits["relative_error"])
        yield model, f"{what}: clear positions wrong", logits["wrong_clear"], count
        yield model, f"{what}: share of positions left out", logits["share_left_out"], count
    if sampled:
        yield model, "repeats of sampled batches that differ", sampled["of"] - sampled["repeats_equal"], sampled["of"]


def _untried(made: Mapping[str, Any], stem: str) -> Figures:
    for name in FORCED:
        row = made.get(f"kernel {name}")
        refused = isinstance(row, dict) and any(words in row.get("failed", "") for words in _NOT_RUN)
        if isinstance(row, dict) and not refused:
            ran = name.partition("=")[2] in row.get("kernels", ())
            yield "tiny", f"forced {name}: failures", int(not ran), 1
    half = _part(made, "dtype float16")
    if half and "model" in made:
        yield made["model"], FLOAT16, max(half["relative_error"]), len(half["relative_error"])
