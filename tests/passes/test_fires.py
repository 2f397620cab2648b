"""Every pass and optional step finds something to do in a real model, and the answers stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir import Runtime, compile_model, run_module
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.read import read_artifact
from cacheir.plugins.installation import default
from cacheir.plugins.specs import PassRecord, Stage
from cacheir_importers.tiny import write_tiny

IDS = [3 + (index * index * 7 + index) % 280 for index in range(17)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family."""
    root = tmp_path_factory.mktemp("passes")

    def folder(family: str) -> Path:
        path = root / family
        if not path.exists():
            write_tiny(path, family=family)
        return path

    return folder


def records_of(model: Path, output: Path, **options: Any) -> list[PassRecord]:
    return list(compile_model(model, target="cpu", output=output, **options).records())


def changed(records: list[PassRecord], name: str) -> list[PassRecord]:
    """Those of a pass that changed something; every one of it says what it found, or why it found nothing."""
    own = [record for record in records if record.name == name]
    assert own and all(record.notes for record in own)
    return [record for record in own if record.outcome == "changed"]


def logits(model: Path, backend: str = "cpu", **options: Any) -> Any:
    chosen = CompileOptions(**options)
    with Runtime(model, backend, max_seq=64, compile_options=chosen) as opened, opened.session() as session:
        session.append(IDS)
        return session.logits()


def assert_same_logits(model: Path, left: dict[str, Any], right: dict[str, Any], backend: str = "cpu") -> None:
    one, other = logits(model, backend, **left), logits(model, backend, **right)
    assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()


def test_weights_of_experts_are_made_once(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = tiny("mixtral")
    records = records_of(model, tmp_path / "a")
    (record,) = [r for r in changed(records, "fold-weights") if r.mode == "decode"]
    assert record.counts == {"reshape": -3, "transpose": -3} and record.graph == "decoder_layer"
    assert_same_logits(model, {}, {"skip_passes": ("fold-weights",)})


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "qwen2_moe"])
def test_quantised_experts_are_unpacked_once_on_numpy(family: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """A step finds the experts of all layers dense and turned; the numbers are those of unpacking in each step."""
    model = tiny(family)
    records = records_of(model, tmp_path / "a", quant="int4")
    made = [record for record in changed(records, "unpack-weights") if record.mode == "decode"]
    assert made and all(record.counts == {"dequantize": -3} for record in made)
    program = read_artifact(tmp_path / "a", default()).program
    for module in program.modules.values():
        assert not any(op.name == "dequantize" for graph in module.graphs for op in graph.ops)
    assert_same_logits(model, {"quant": "int4"}, {"quant": "int4", "skip_passes": ("unpack-weights",)})


def test_materialised_weights_are_read_as_they_are_used(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """What a recipe makes is written into the artifact: loading it moves no weight any more."""
    artifact = compile_model(tiny("mixtral"), target="cpu", output=tmp_path / "a", materialise=True)
    made = [recipe for recipe in artifact.program.weights if recipe.startswith("transpose(")]
    assert made and all(recipe in artifact.manifest.tensors for recipe in made)
    with Runtime(tmp_path / "a") as opened:
        found = opened.generate_ids(IDS, 4, ignore_eos=True)
        with Runtime(tiny("mixtral"), "cpu") as other:
            assert list(found) == list(other.generate_ids(IDS, 4, ignore_eos=True))


def test_scales_of_a_layer_are_written_once(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = tiny("granite")
    records = records_of(model, tmp_path / "a")
    (record,) = changed(records, "common-subexpressions")
    assert record.graph == "decoder_layer" and record.counts == {"constant": -1}
    assert_same_logits(model, {}, {"skip_passes": ("common-subexpressions",)})


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_norms_and_turns_of_q_and_k_in_one_launch(backend: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    if backend == "native":
        from cacheir_native.probe import why_unavailable

        if reason := why_unavailable():
            pytest.skip(reason)
    model = tiny("qwen3")
    asked = {"passes": ("fuse-horizontal",)}
    counts = []
    for name, options in (("plain", {}), ("paired", asked)):
        artifact = compile_model(model, target=backend, output=tmp_path / name, **options)
        layer = artifact.program.schedules["decode"].graph("decoder_layer")
        counts.append(len(layer.entries))
        names = {entry.op_name: {choice.kernel for choice in entry.choices} for entry in layer.entries}
    assert counts[0] - counts[1] == 2
    assert all(names["rms_norm_pair"]) and all(names["rope_pair"])  # by kernels, not by their meaning
    assert_same_logits(model, {}, asked, backend)


def test_hints_lie_in_the_artifact_and_change_no_number(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    asked = {"passes": ("hardware-hints{cache-bytes=1024}",)}
    records = records_of(tiny("llama"), tmp_path / "a", **asked)
    assert {record.graph for record in changed(records, "hardware-hints")} >= {"decoder_layer", "main", "head.greedy"}
    text = (tmp_path / "a" / "graphs" / "decode.cir").read_text()
    assert 'hint {bound = "memory"' in text and 'weights = "stream"' in text
    np.testing.assert_array_equal(logits(tiny("llama")), logits(tiny("llama"), **asked))


def test_hints_on_smollm2(smollm2_path: Path, tmp_path: Path) -> None:
    records = records_of(smollm2_path, tmp_path / "a", passes=("hardware-hints",), max_seq=256)
    notes = [record.notes[0] for record in changed(records, "hardware-hints") if record.graph == "decoder_layer"]
    assert len(notes) == 2 and all("stream" in note and "keep" in note for note in notes)


def test_layers_in_main_and_a_layer_alone(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = tiny("llama")
    for number, request in enumerate(("inline-layers", "split-layer{layer=1}")):
        records = records_of(model, tmp_path / str(number), passes=(request,))
        assert changed(records, request.partition("{")[0])
        with Runtime(tmp_path / str(number)) as opened, Runtime(model, "cpu") as other:
            made = list(opened.generate_ids(IDS, 6, ignore_eos=True))
            assert made == list(other.generate_ids(IDS, 6, ignore_eos=True))


def test_products_of_an_onnx_graph_read_rows_of_weights(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(3)
    w, b = rng.normal(size=(64, 32)).astype(np.float32), rng.normal(size=(16, 32)).astype(np.float32)
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Transpose", ["h"], ["turned"], perm=[1, 0]),
            helper.make_node("Transpose", ["turned"], ["back"], perm=[1, 0]),
            helper.make_node("Gemm", ["back", "b"], ["y"], transB=1),
        ],
        "two",
        [helper.make_tensor_value_info("x", kind, ["N", 64])],
        [helper.make_tensor_value_info("y", kind, ["N", 16])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "two.onnx"
    onnx.save(model, path)
    artifact = compile_model(path, target="cpu", output=tmp_path / "a")
    records = list(artifact.records())
    (record,) = changed(records, "convert-layout")
    assert record.counts == {"linear": 2, "matmul": -2, "transpose": -1}
    assert changed(records, "drop-no-ops")
    main = artifact.program.modules["main"].main
    assert [op.name for op in main.ops] == ["linear", "linear"]
    x = rng.normal(size=(5, 64)).astype(np.float32)
    (found,) = run_module(path, {"x": x})
    np.testing.assert_allclose(found, x.astype(np.float64) @ w @ b.T, rtol=0, atol=1e-4)


def test_planning_steps_say_what_they_chose(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    records = records_of(tiny("llama"), tmp_path / "a")
    plans = [record for record in records if record.stage is Stage.PLAN and record.mode == "decode"]
    names = ["select-kernels", "choose-layouts", "schedule", "plan-memory", "plan-captures"]
    assert [record.name for record in plans] == names
    notes = {record.name: record.notes for record in plans}
    assert any(note.startswith("cpu.numpy.linear runs ") for note in notes["select-kernels"])
    assert any(note.startswith("3 weights joined, in the layout rows") for note in notes["choose-layouts"])
    assert any(note.startswith("@decoder_layer: %") and " over %" in note for note in notes["plan-memory"])
    assert notes["plan-captures"] == ("the backend cpu records no device graphs",)


@pytest.mark.parametrize(("family", "finds"), [("llama", False), ("qwen3", True)])
def test_pairing_says_what_it_found_in_every_graph(
    tiny: Callable[[str], Path], tmp_path: Path, family: str, finds: bool
) -> None:
    records = records_of(tiny(family), tmp_path / "out", passes=("fuse-horizontal",))
    assert bool(changed(records, "fuse-horizontal")) == finds
    assert any("no two small ops of one kind" in record.notes for record in records)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "qwen2_moe"])
def test_no_pass_is_silent_about_any_graph(family: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    wanted = ("fuse-horizontal", "fuse-norm-swiglu", "hardware-hints", "split-layer{layer=1}", "inline-layers")
    records = records_of(tiny(family), tmp_path / "out", passes=wanted)
    core = {item.spec.name for item in default().passes.contributions if item.plugin.name == "core"}
    assert core <= {record.name for record in records}
    assert [(record.name, record.graph) for record in records if not record.notes] == []
