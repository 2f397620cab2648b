"""``cacheir explain`` and calibrations on both CPU backends: sums, reasons, forced kernels, and bytes of artifacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cacheir import settings
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.bench import kernel_rates, synthetic_decoder
from cacheir.bench.calibrate import calibrate
from cacheir.bench.calibration import Calibration, save_calibration
from cacheir.bench.cpu_load import CpuTimes
from cacheir.bench.explain import explain, measure_step, step_shape
from cacheir.bench.step_probe import StepTimes
from cacheir.cli import profile
from cacheir.cli.explain import app
from cacheir.cli.main import run
from cacheir.cli.show_explanation import explanation_json, explanation_text
from cacheir.compile import open_program
from cacheir.errors import UsageError
from cacheir.plugins.installation import default
from cacheir.runtime.executor import CallTiming
from cacheir.schedule.record_json import to_json
from cacheir_importers.tiny import write_tiny

BACKENDS = ("cpu", "native")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield settings.cache_dir()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(path, family="llama")
    return path


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """One thread, decoders of a few thousand weights: the rates mean nothing, all the rest does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_rates, "HIDDEN", (128,))
        patch.setattr(kernel_rates, "FORMATS", ("f32", "q8_0"))
        patch.setattr(synthetic_decoder, "VOCABULARY", 512)
        return calibrate(default(), threads=[1], sample_mb=3, repeats=1)


def opened(tiny: Path, backend: str) -> Artifact:
    return open_program(tiny, CompileOptions(target=backend, max_tokens=64, max_seq=128))


def test_a_calibration_has_rates_for_what_decoders_run(calibration: Calibration) -> None:
    native, numpy = calibration.rates("native", 1), calibration.rates("cpu", 1)
    assert native is not None and numpy is not None
    assert {"cpu.native.linear.f32@f32", "cpu.native.linear.int8@q8_0", "cpu.native.head_argmax.int8"} <= set(
        native.kernels
    )
    assert {"cpu.numpy.linear", "cpu.numpy.paged_attention_prefill", "cpu.numpy.kv_append"} <= set(numpy.kernels)
    # Its own kernels read f32, however weights are stored; those that cacheir-native brings it read packed ones.
    assert not any("@" in name for name in numpy.kernels if ".native." not in name)
    assert "cpu.numpy.native.linear@q8_0" in numpy.kernels
    assert "cpu.native.kv_append" in native.joined
    assert native.step_s >= 0 and numpy.step_s >= 0
    for rates in (native, numpy):
        for rate in rates.kernels.values():
            assert min(rate.launch_s, rate.s_per_byte, rate.s_per_operation) >= 0
            assert rate.seconds(1000, 1000) > 0


@pytest.mark.parametrize("mode", ["decode", "prefill"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nodes_and_the_rest_add_up_to_the_step(tiny: Path, calibration: Calibration, backend: str, mode: str) -> None:
    artifact = opened(tiny, backend)
    shape = step_shape(artifact, mode, rows=2, context=40)
    times = measure_step(artifact, default(), shape, threads=1, repeats=2)
    found = explain(artifact, default(), shape, threads=1, calibration=calibration, times=times)
    assert found.measured_s == pytest.approx(times.step_s)
    assert sum(line.measured_s or 0 for line in found.lines) == pytest.approx(sum(call.seconds for call in times.calls))
    assert all(line.floor_s is not None and line.predicted_s is not None for line in found.lines)
    layers = artifact.program.spec.layers  # type: ignore[union-attr]
    by_op = {line.node.op: line.node for line in found.lines}
    assert by_op[f"paged_attention_{mode}"].calls == len(layers)
    assert by_op["embedding"].calls == 1
    answer = explanation_json(found)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["totals"]["predicted_s"] == pytest.approx(
        sum(node["predicted_s"] for node in answer["nodes"]) + answer["rest"]["predicted_s"]
    )
    text = explanation_text(found)
    assert "what no node accounts for" in text and "the step" in text and "not taken:" in text


def test_costs_follow_the_context(tiny: Path) -> None:
    artifact = opened(tiny, "native")
    short, long = (
        explain(artifact, default(), step_shape(artifact, "decode", context=context), threads=1)
        for context in (10, 110)
    )
    for before, after in zip(short.lines, long.lines, strict=True):
        grows = before.node.op == "paged_attention_decode"
        assert (after.node.cost.bytes > before.node.cost.bytes) == grows
        assert (after.node.cost.operations > before.node.cost.operations) == grows
    assert short.predicted_s is None and short.floor_s is None and short.measured_s is None


def test_threads_that_were_not_calibrated_are_said(tiny: Path, calibration: Calibration) -> None:
    artifact = opened(tiny, "native")
    found = explain(artifact, default(), step_shape(artifact, "decode"), threads=3, calibration=calibration)
    assert found.predicted_s is None
    assert any("not calibrated with 3 threads (only with: 1)" in note for note in found.notes)


def test_what_beats_its_floor_is_named_with_the_reasons(tiny: Path, calibration: Calibration) -> None:
    artifact = opened(tiny, "cpu")
    shape = step_shape(artifact, "decode")
    lines = explain(artifact, default(), shape, threads=1, calibration=calibration).lines

    def notes(seconds: float) -> list[str]:
        nodes = [line.node for line in lines]
        calls = tuple(
            CallTiming(graph=node.graph, node=node.node, kernel=node.kernel, calls=1, seconds=seconds) for node in nodes
        )
        times = StepTimes(step_s=1.0, calls=calls)
        found = explain(artifact, default(), shape, threads=1, calibration=calibration, times=times)
        return [note for note in found.notes if note.startswith("faster than the floor: ")]

    assert notes(1.0) == []
    (note,) = notes(1e-15)
    dear = max(lines, key=lambda line: line.floor_s or 0.0)
    assert f"%{dear.node.node}" in note and "while it was calibrated (cacheir profile --calibrate measures" in note


def test_threads_are_left_out_where_a_device_computes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = opened(tiny, "cpu")
    shape = step_shape(artifact, "decode")
    for threads, words in ((1, ", on cpu with 1 thread\n"), (2, ", on cpu with 2 threads\n")):
        found = explain(artifact, default(), shape, threads=threads)
        assert found.threads == threads and words in explanation_text(found)
    by_name = dict(default().backends.by_name())
    by_name["cpu"] = replace(by_name["cpu"], rates="nowhere:rates")
    monkeypatch.setattr(default().backends, "by_name", lambda: by_name)
    found = explain(artifact, default(), shape, threads=2)
    assert found.threads is None and ", on cpu\n" in explanation_text(found)
    assert explanation_json(found)["threads"] is None


@pytest.mark.parametrize("foreign", [0.0, 0.4])
def test_a_calibration_says_how_long_it_takes_and_that_others_had_the_machine(
    calibration: Calibration, foreign: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("cacheir.bench.calibrate.calibrate", lambda *given, **named: calibration)
    moments = iter([CpuTimes(0.0, 0.0, 0.0, 2), CpuTimes(10.0, 20 * foreign, 0.0, 2)])
    monkeypatch.setattr(profile, "cpu_times", lambda: next(moments))
    shown = CliRunner().invoke(profile.app, ["--calibrate", "--threads", "1"])
    assert shown.exit_code == 0, shown.output
    assert "this takes about a minute on a quiet machine" in shown.stderr and "kept in" in shown.stderr
    assert ("the rates may be too low: foreign CPU load: 40% of the cores' time" in shown.stderr) == (foreign > 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "other"}, "no mode 'other'"),
        ({"rows": 99}, "--rows must be from 1 to 8"),
        ({"context": 129}, "--context must be from 1 to 128"),
        ({"mode": "prefill", "tokens": 65}, "--tokens must be a multiple of --rows, at most 64"),
        ({"mode": "prefill", "tokens": 33, "rows": 2}, "--tokens must be a multiple"),
        ({"mode": "prefill", "tokens": 60, "context": 12}, "--context must be from 60"),
    ],
)
def test_steps_that_cannot_be(tiny: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        step_shape(opened(tiny, "cpu"), **{"mode": "decode", **options})


def test_the_command_says_how_to_calibrate_and_shows_a_node(
    tiny: Path, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(tiny), "--backend", "native", "--threads", "1"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "run cacheir profile --calibrate" in shown.stderr
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path))
    save_calibration(calibration, tmp_path)
    shown = CliRunner().invoke(app, [*words, "--node", "%product", "--measure", "--repeats", "1"])
    assert shown.exit_code == 0, shown.output
    assert "calibrate" not in shown.stderr
    assert (
        "taken" in shown.stdout and "not taken" in shown.stdout and "its weights are not 16 bits wide" in shown.stdout
    )
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert answer["calibrated"] is True and answer["totals"]["predicted_s"] > 0
    wrong = CliRunner().invoke(app, [*words, "--node", "nobody"])
    assert isinstance(wrong.exception, UsageError) and "no node 'nobody'" in str(wrong.exception)


def test_forcing_a_refused_kernel_says_the_recorded_reason(tiny: Path) -> None:
    artifact = opened(tiny, "native")
    found = explain(artifact, default(), step_shape(artifact, "decode"), threads=1)
    refused = [
        (line.node.op, loser)
        for line in found.lines
        for loser in line.node.losers
        if not loser.refusal.startswith("not chosen")
    ]
    assert refused
    for op, loser in refused:
        shown = CliRunner().invoke(app, [str(tiny), "--backend", "native", "--kernel", f"{op}={loser.kernel}"])
        assert isinstance(shown.exception, UsageError)
        assert str(shown.exception).endswith(f"kernel {loser.kernel!r} was forced, but {loser.refusal}")


def test_a_forced_kernel_runs(tiny: Path) -> None:
    words = [str(tiny), "--backend", "cpu", "--kernel", "linear=cpu.numpy.linear_invariant", "--json"]
    answer = json.loads(CliRunner().invoke(app, words).stdout)
    assert {node["kernel"] for node in answer["nodes"] if node["op"] == "linear"} == {"cpu.numpy.linear_invariant"}
    assert {node["reason"] for node in answer["nodes"] if node["op"] == "linear"} == {"forced by --kernel"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_places_and_two_calibrations_give_equal_bytes(
    tiny: Path, calibration: Calibration, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = to_json(calibration)
    for number in (0, 1):
        place = tmp_path / f"place {number}"
        place.mkdir()
        monkeypatch.setenv("CACHEIR_CACHE_DIR", str(place / "cache"))
        if number:
            for rates in slow["backends"].values():
                for by_threads in rates.values():
                    by_threads["kernels"] = {}
            from cacheir.schedule.record_json import from_json

            save_calibration(from_json(Calibration, slow, "slow"), place / "cache")
        else:
            save_calibration(calibration, place / "cache")
        command = [sys.executable, "-m", "cacheir.cli.main", "compile", str(tiny), "--target", backend]
        subprocess.run(
            [*command, "--output", "artifact"], cwd=place, env={**os.environ}, check=True, capture_output=True
        )
    first, second = (artifact_bytes(tmp_path / f"place {number}" / "artifact") for number in (0, 1))
    assert first == second
    schedule = json.loads(first["schedules/decode.json"])
    choices = [choice for graph in schedule["graphs"] for entry in graph["entries"] for choice in entry["choices"]]
    assert any(choice["bytes"] and choice["operations"] and choice["at_rows"] for choice in choices)
    assert not any("seconds" in key or key.endswith("_s") for choice in choices for key in choice)


def artifact_bytes(folder: Path) -> dict[str, bytes]:
    """Every file but those beside the guarantee (docs/artifact.md); nothing was loaded, so lock.json belongs to it."""
    beside = {"passes/times.json", "weights/location.json"}
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert beside <= set(files)
    return {name: data for name, data in files.items() if name not in beside}


def test_a_pass_says_what_it_matched_and_why_it_found_nothing(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(tiny), "--backend", "cpu", "--pass", "fuse_add_norm"]) == 0
    shown = capsys.readouterr().out
    assert "changed @decoder_layer of decode" in shown and "add %h_mid: %h_mid" in shown
    assert "@main of decode" in shown and "no rms_norm of a sum" in shown and "prefill" not in shown
    assert run(["explain", str(tiny), "--backend", "cpu", "--pass", "fuse-qkv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (changed,) = [record for record in found["records"] if record["outcome"] == "changed"]
    assert changed["sites"] == [{"op": "linear", "replaced": "q", "made": ["q"]}] and changed["rewrites"] == 1
    assert run(["explain", str(tiny), "--backend", "cpu", "--pass", "fuse-horizontal"]) == 0
    assert "fuse-horizontal did not run here" in capsys.readouterr().out
    assert run(["explain", str(tiny), "--backend", "cpu", "--pass", "no-such-pass"]) == 2
    assert run(["explain", str(tiny), "--backend", "cpu", "--pass", "fuse-qkv", "--mode", "no-such-mode"]) == 2
    assert run(["explain", str(tiny), "--backend", "cpu", "--pass", "fuse-qkv", "--measure"]) == 2
