"""Engines in turn: the order, samples that do not count, rows that lose, figures worked out from raw samples."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cacheir.bench.against import peers, rounds
from cacheir.bench.against.cells import CELLS, Cell, chosen_cells
from cacheir.bench.against.child import Child
from cacheir.bench.against.compare import compare
from cacheir.bench.against.contestants import Contestant, peer_contestants
from cacheir.bench.against.rounds import CellRun, run_cell
from cacheir.bench.against.tables import markdown, summaries
from cacheir.bench.cpu_load import CpuTimes
from cacheir.errors import BackendError, UsageError
from cacheir.plugins.installation import default

DECODE = chosen_cells(["decode-128"])[0]
BANDWIDTH = 50e9
RUNS: dict[str, Any] = {"": {"commit": "", "decode_bytes": 100_000_000, "engines": {}}}


class World:
    """A clock that engines push on, and what others do meanwhile."""

    def __init__(self) -> None:
        self.now, self.foreign, self.turns = 0.0, 0.0, []  # type: ignore[var-annotated]
        self.busy_for, self.busy_until = "", float("inf")

    def clock(self) -> CpuTimes:
        return CpuTimes(clock=self.now, busy=self.foreign, own=0.0, cores=2)


class FakeEngine:
    """Takes ``seconds`` for a run; those of a label in ``world.busy_for`` have company."""

    def __init__(self, world: World, engine: str, setting: str, seconds: float, fault: str = "") -> None:
        self.contestant = Contestant(engine=engine, setting=setting, command=("none",))
        self.facts: dict[str, Any] = {"bytes": BANDWIDTH * seconds, "decode_bytes": 100_000_000}
        self.said: dict[str, Any] = {}
        self._world, self._seconds, self._fault, self._own = world, seconds, fault, 0.0

    def run(self, cell: Cell, repeats: int = 1) -> Sequence[float]:
        if self._fault:
            raise BackendError(self._fault)
        self._world.turns.append((self.contestant.label, repeats))
        taken = repeats * self._seconds
        self._world.now += taken
        self._own += 2 * taken  # both cores
        self._world.foreign += 2 * taken + (taken if self._has_company() else 0.0)
        return [self._seconds] * repeats

    def _has_company(self) -> bool:
        return self.contestant.label == self._world.busy_for and self._world.now < self._world.busy_until

    def cpu_seconds(self) -> float:
        return self._own


def ran(world: World, engines: list[FakeEngine], samples: int = 7, screen: int = 2, extra: int = 0) -> CellRun:
    probe = FakeEngine(world, "memory", "", 0.05)
    return run_cell(DECODE, engines, probe, samples=samples, screen=screen, extra=extra, clock=world.clock)


def raw(run: CellRun) -> list[dict[str, Any]]:
    return json.loads(json.dumps([asdict(sample) for sample in run.samples]))  # type: ignore[no-any-return]


def test_engines_take_turns_with_the_probe_between() -> None:
    world = World()
    ran(world, [FakeEngine(world, "cacheir", "", 0.5), FakeEngine(world, "other", "", 1.0)], samples=3)
    labels = [label for label, _ in world.turns]
    assert labels[:2] == ["cacheir", "other"]  # warm-up
    assert labels[2:4] == ["memory", "memory"]
    assert labels[4:] == ["cacheir", "memory", "other", "memory"] * 3


def test_short_runs_are_repeated_until_load_can_be_told() -> None:
    world = World()
    run = ran(world, [FakeEngine(world, "cacheir", "", 0.03)], samples=2)
    assert [len(sample.seconds) for sample in run.samples] == [14, 14]
    assert all(sample.foreign_load is not None and sample.foreign_load < 0.01 for sample in run.samples)


def test_an_engine_that_is_faster_than_its_warm_up_is_asked_again_until_load_can_be_told() -> None:
    world = World()
    engine = FakeEngine(world, "cacheir", "", 0.5)
    run_once = engine.run

    def run(cell: Cell, repeats: int = 1) -> Sequence[float]:
        given = run_once(cell, repeats)
        engine._seconds = 0.1
        return given

    engine.run = run  # type: ignore[method-assign]
    world.busy_for = "cacheir"
    (sample,) = ran(world, [engine], samples=1).samples
    assert len(sample.seconds) >= 3 and set(sample.seconds) == {0.1}
    assert sample.invalid


def test_the_best_setting_of_a_peer_goes_into_the_rounds() -> None:
    world = World()
    engines = [
        FakeEngine(world, "cacheir", "", 0.5),
        FakeEngine(world, "llama.cpp", "plain", 1.0),
        FakeEngine(world, "llama.cpp", "flash attention", 0.8),
    ]
    run = ran(world, engines)
    rounds = {sample.label for sample in run.samples if sample.part == "round"}
    assert rounds == {"cacheir", "llama.cpp, flash attention"}
    screened = [sample.label for sample in run.samples if sample.part == "screen"]
    assert screened == ["llama.cpp, plain", "llama.cpp, flash attention"] * 2


def test_samples_with_company_are_marked_and_do_not_count() -> None:
    world = World()
    world.busy_for = "other"
    run = ran(world, [FakeEngine(world, "cacheir", "", 0.5), FakeEngine(world, "other", "", 1.0)], samples=2)
    by_label = {label: [s for s in run.samples if s.label == label] for label in ("cacheir", "other")}
    assert all(not sample.invalid for sample in by_label["cacheir"])
    assert all("foreign CPU load: 50%" in sample.invalid[0] for sample in by_label["other"])
    rows = {row["label"]: row for row in summaries(raw(run), RUNS)}
    assert rows["cacheir"]["valid"] and not rows["other"]["valid"]
    samples = raw(run)
    samples[0]["seconds"], samples[0]["invalid"] = [50.0], ["company"]
    assert summaries(samples, RUNS)[0]["tokens_per_s"] == pytest.approx(256.0)
    assert summaries(samples, RUNS)[0]["counted"] == 1


def rounds_of(run: CellRun, label: str) -> list[bool]:
    """Whether each sample of an engine's rounds counts."""
    return [not sample.invalid for sample in run.samples if sample.label == label and sample.part == "round"]


def test_rounds_are_made_up_for_until_enough_count() -> None:
    world = World()
    world.busy_for, world.busy_until = "other", 6.0  # a warm-up and about three rounds
    run = ran(world, [FakeEngine(world, "cacheir", "", 0.5), FakeEngine(world, "other", "", 1.0)], extra=7)
    spoilt = rounds_of(run, "other").count(False)
    assert 0 < spoilt < 7 and rounds_of(run, "other").count(True) == 7
    assert rounds_of(run, "cacheir") == [True] * (7 + spoilt)


def test_no_more_rounds_are_made_up_for_than_were_allowed_and_the_table_says_why() -> None:
    world = World()
    world.busy_for = "other"
    run = ran(world, [FakeEngine(world, "cacheir", "", 0.5), FakeEngine(world, "other", "", 1.0)], samples=3, extra=2)
    assert rounds_of(run, "other") == [False] * 5
    samples = raw(run)
    samples[-1]["invalid"] = []
    (row,) = [row for row in summaries(samples, RUNS) if row["label"] == "other"]
    assert (row["counted"], row["samples"], row["heaviest_load"]) == (1, 5, pytest.approx(0.5))
    report = {
        "model": "m", "threads": 2, "samples": samples, "refused": {}, "missing": {}, "runs": RUNS,
        "environment": {"cpu": {"model": "c"}, "cacheir": {"commit": ""}},
    }  # fmt: skip
    assert "| 1 of 5; others took up to 50% |" in markdown(report)


def test_no_round_is_begun_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(rounds.time, "monotonic", lambda: world.now)
    probe = FakeEngine(world, "memory", "", 0.25)
    run = run_cell(DECODE, [FakeEngine(world, "cacheir", "", 1.0)], probe, samples=7, seconds=6.0, clock=world.clock)
    # A warm-up of 1 s, two readings of the probe, then rounds of 1.25 s.
    assert rounds_of(run, "cacheir") == [True] * 3
    assert not run.refused
    late = run_cell(DECODE, [FakeEngine(world, "cacheir", "", 1.0)], probe, samples=7, seconds=0.5, clock=world.clock)
    assert rounds_of(late, "cacheir") == [] and "no round fitted into 0.5 s" in late.refused["cacheir"]


def test_an_engine_that_fails_in_a_round_is_left_out_from_there_on_and_keeps_its_samples() -> None:
    world = World()
    dying = FakeEngine(world, "other", "", 1.0)
    run_once, left = dying.run, [1 + 2]  # the warm-up and two rounds

    def run(cell: Cell, repeats: int = 1) -> Sequence[float]:
        left[0] -= 1
        if left[0] < 0:
            raise BackendError("other has ended: out of memory")
        return run_once(cell, repeats)

    dying.run = run  # type: ignore[method-assign]
    found = ran(world, [FakeEngine(world, "cacheir", "", 0.5), dying], extra=7)
    assert rounds_of(found, "cacheir") == [True] * 7 and rounds_of(found, "other") == [True] * 2
    assert found.refused == {"other": "other has ended: out of memory"}


def test_what_was_skipped_is_no_part_of_what_was_read() -> None:
    world = World()
    engine = FakeEngine(world, "cacheir", "", 0.5)
    engine.said = {"skipped_bytes": 128 * 25_000_000}
    samples = raw(ran(world, [engine], samples=1))
    (row,) = summaries(samples, RUNS)
    assert row["probe_share"] == pytest.approx(100e6 * 128 / 0.5 / BANDWIDTH)
    assert row["read_share"] == pytest.approx(75e6 * 128 / 0.5 / BANDWIDTH)
    other = {"": {**RUNS[""], "engines": {"cacheir": {"weights": "int4"}}}}
    (row,) = summaries(samples, other)
    assert (row["weights"], row["probe_share"], row["read_share"]) == ("int4", None, None)


def test_a_row_that_loses_stays_and_an_engine_that_fails_is_named() -> None:
    world = World()
    engines = [
        FakeEngine(world, "cacheir", "", 1.0),
        FakeEngine(world, "other", "", 0.5),
        FakeEngine(world, "third", "", 1.0, fault="third has no such op"),
    ]
    run = ran(world, engines)
    rows = {row["label"]: row for row in summaries(raw(run), RUNS)}
    assert rows["other"]["our_ratio"] == pytest.approx(0.5)
    assert run.refused == {"third": "third has no such op"}
    report = {
        "model": "m", "threads": 2, "decode_bytes": 1, "samples": raw(run), "refused": {DECODE.name: run.refused},
        "missing": {"fourth": "it is not installed"}, "runs": RUNS,
        "environment": {"cpu": {"model": "c"}, "cacheir": {"commit": ""}},
    }  # fmt: skip
    table = markdown(report)
    assert "| decode-128 | other | 256.0 | 0.50x |" in table
    assert "third | did not run: third has no such op" in table
    assert "fourth | did not run: it is not installed" in table


def test_figures_are_those_of_the_raw_samples() -> None:
    times = {"cacheir": [0.5, 0.6, 0.4, 0.9, 0.55], "other": [1.0, 1.3, 0.9, 1.7, 1.2]}
    samples = [
        {
            "cell": DECODE.name, "label": label, "engine": label, "part": "round", "number": number,
            "seconds": [seconds], "probe_before": 40e9, "probe_after": 60e9, "foreign_load": 0.0, "invalid": [],
        }
        for number in range(5)
        for label in times
        for seconds in [times[label][number]]
    ]  # fmt: skip
    ours, other = summaries(samples, RUNS)
    assert ours["tokens_per_s"] == pytest.approx(128 / statistics.median(times["cacheir"]))
    assert other["ratio_of_medians"] == pytest.approx(
        statistics.median(times["other"]) / statistics.median(times["cacheir"])
    )
    paired = [theirs / mine for mine, theirs in zip(times["cacheir"], times["other"])]
    assert other["our_ratio"] == pytest.approx(statistics.median(paired))
    assert ours["probe_share"] == pytest.approx(100e6 * 128 / 0.55 / 50e9)


SERVING = """
import json, sys
print(json.dumps({"ready": {"decode_bytes": 7}}), flush=True)
for line in sys.stdin:
    cell = json.loads(line)
    if cell["batch"] > 1:
        print(json.dumps({"error": "no batches"}), flush=True)
    elif cell["tokens"] == 16:
        sys.exit("a fault of the engine")
    else:
        print(json.dumps({"seconds": [0.5] * cell["repeats"]}), flush=True)
"""


def served(text: str, engine: str = "cacheir") -> Contestant:
    return Contestant(engine=engine, setting="", command=(sys.executable, "-c", text))


def test_a_child_answers_refuses_and_dies() -> None:
    cells = {cell.name: cell for cell in CELLS}
    with Child(served(SERVING)) as child:
        assert child.facts == {"decode_bytes": 7}
        assert child.run(cells["prefill-512"], 3) == (0.5, 0.5, 0.5)
        with pytest.raises(BackendError, match="does not run decode-batch-16: no batches"):
            child.run(cells["decode-batch-16"])
        with pytest.raises(BackendError, match="a fault of the engine"):
            child.run(cells["prefill-16"])
    with pytest.raises(BackendError, match="no such library"):
        Child(served("import json; print(json.dumps({'error': 'no such library'}))"))


def test_a_peer_that_does_not_open_the_file_is_in_the_report(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"12345")
    kept: list[Any] = []
    report = compare(
        served(SERVING),
        [served("import sys; sys.exit('wrong file')", "other")],
        {"third": "it is not installed"},
        chosen_cells(["prefill-512"]),
        model=model,
        threads=1,
        samples=2,
        screen=1,
        done=kept.append,
    )
    assert "wrong file" in report["missing"]["other"] and report["missing"]["third"] == "it is not installed"
    assert kept == [report]
    assert report["file_bytes"] == 5 and [row["label"] for row in report["rows"]] == ["cacheir"]
    assert str(tmp_path) not in json.dumps(report)


def test_peers_of_core_say_how_they_are_started_or_why_not(tmp_path: Path) -> None:
    installation = default()
    names = ["llama.cpp", "openvino", "onnxruntime-genai"]
    pythons = dict.fromkeys(names, "some-python")
    made = tmp_path / "made"
    made.mkdir()
    (made / "genai_config.json").write_text("{}")
    (made / "made_from.json").write_text('{"model": "m.gguf", "precision": "int4"}')
    models = {"openvino": "folder", "onnxruntime-genai": str(made)}
    found, missing = peer_contestants(installation, names, model=tmp_path, threads=2, pythons=pythons, models=models)
    assert not missing and {each.engine for each in found} == set(names)
    assert all(each.command[0] == "some-python" for each in found)
    llama = [each for each in found if each.engine == "llama.cpp"]
    assert len({each.label for each in llama}) == len(llama) >= 2
    assert all(each.environment["OMP_NUM_THREADS"] == "2" for each in found)
    assert any('"model": "folder"' in each.command[-1] for each in found if each.engine == "openvino")
    (onnx,) = [each for each in found if each.engine == "onnxruntime-genai"]
    assert onnx.label == "onnxruntime-genai, int4 weights" and '"weights": "int4"' in onnx.command[-1]
    (made / "made_from.json").unlink()
    found, _ = peer_contestants(installation, names[2:], model=made, threads=2, pythons={names[2]: "p"}, models={})
    assert [each.setting for each in found] == ["made weights"]
    with pytest.raises(UsageError, match="not compared with"):
        peer_contestants(installation, [], model=tmp_path, threads=2, pythons=pythons, models={})
    given: dict[str, Any] = {"model": tmp_path, "threads": 2, "pythons": {"vllm": "p"}, "models": {}}
    found, _ = peer_contestants(installation, ["vllm"], **given)
    assert [each.label for each in found] == ["vllm, own process", "vllm, in process"]
    found, _ = peer_contestants(installation, ["vllm"], **given, settings={"vllm": "in process"})
    assert [each.setting for each in found] == ["in process"]
    with pytest.raises(UsageError, match="has no setting 'eager'") as caught:
        peer_contestants(installation, ["vllm"], **given, settings={"vllm": "eager"})
    assert "own process, in process" in caught.value.hint
    given = {**given, "pythons": {"openvino": "p"}}
    with pytest.raises(UsageError, match="has no setting 'fast'") as caught:
        peer_contestants(installation, ["openvino"], **given, settings={"openvino": "fast"})
    assert "leave --peer-setting out" in caught.value.hint
    with pytest.raises(UsageError, match="no cell"):
        chosen_cells(["prefil"])


@pytest.mark.parametrize("noted", [None, "no json", "[]", "{}"])
def test_onnx_runtime_refuses_what_is_no_folder_of_its_own(tmp_path: Path, noted: str | None) -> None:
    if noted is not None:
        (tmp_path / "genai_config.json").write_text("{}")
        (tmp_path / "made_from.json").write_text(noted)
    name = "onnxruntime-genai"
    found, missing = peer_contestants(default(), [name], model=tmp_path, threads=1, pythons={name: "p"}, models={})
    assert not found
    assert ("does not say a precision" if noted else "--peer-model onnxruntime-genai=FOLDER") in missing[name]
    assert str(tmp_path) not in missing[name]


def test_a_cell_of_the_other_kind_is_no_choice() -> None:
    assert len(chosen_cells((), answers=True)) == 15
    with pytest.raises(UsageError, match="no cell 'decode-128'"):
        chosen_cells(["decode-128"], answers=True)


def test_the_doctor_s_line_of_peers_is_idle_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[str] = set()
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name if name in found else None)
    none = peers.installed_peers()
    assert none.ok and none.idle and "vllm: vllm is not installed" in none.detail
    found.add("vllm")
    one = peers.installed_peers()
    assert one.ok and not one.idle and one.detail.endswith("vllm: installed")
