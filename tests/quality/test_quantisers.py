"""Plans, recipe files, calibration and checkpoints on tiny models of several families."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir import Runtime
from cacheir.artifact.cache import clear
from cacheir.artifact.card import CompileOptions
from cacheir.cli.main import run
from cacheir.compile import open_program
from cacheir.errors import MalformedModelError, NoImporterError, UsageError
from cacheir.formats.quant_array import QuantArray
from cacheir.models.find_model import ModelSource, find_importer, open_model
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.unpack_recipes import imported_weight_types
from cacheir.plugins.installation import default
from cacheir.quantisers import awq
from cacheir.quantisers.calibration import calibrated_layers
from cacheir.quantisers.checkpoint import MARKER, write_arrays
from cacheir.quantisers.choose import quant_plan, quant_text
from cacheir.quantisers.model_weights import ModelWeights
from cacheir.quantisers.recipe_file import parse_recipe
from cacheir.testing.float_twin import float_twin, rotation
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

F32 = NDArray[np.float32]
IDS = [3 + (index * index * 7 + index) % 280 for index in range(21)]


def opened(path: Path) -> ImportedModel:
    return open_model(ModelSource(path, find_importer(path, default()), path.name), default())


def logits(path: Path, quant: str = "", backend: str = "cpu") -> F32:
    options = CompileOptions(quant=quant, precise=True)
    with Runtime(path, backend, max_seq=128, compile_options=options) as runtime, runtime.session() as session:
        session.append(IDS)
        found: F32 = session.logits()
        return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny(folder, family="qwen2", shape=TinyShape(tied=True, layers=3))
    return folder


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_plan_names_matrices_alone(tiny: Path) -> None:
    model = opened(tiny)
    assert model.spec is not None
    plan = quant_plan("int4", model.spec, imported_weight_types(model), default()).formats
    assert plan["embed"] == "int8" and plan["layers.2.ffn.down"] == "int4-g32"
    assert len(plan) == 1 + 3 * 7 and not any("norm" in key or "bias" in key for key in plan)


def test_names_are_spelt_either_way(tiny: Path) -> None:
    assert quant_text("INT4_AWQ") == "int4-awq" and quant_text("fp8_e4m3") == "fp8-e4m3" and quant_text(None) == ""
    with pytest.raises(UsageError, match="no quantiser is called 'int3'"):
        open_program(tiny, CompileOptions(quant="int3"))


def test_a_recipe_file_comes_back_as_it_was(tiny: Path, tmp_path: Path) -> None:
    """Round trip: file, text in the card, plan, graphs; layers that differ get classes of their own."""
    rules = [{"match": "layers.0.*", "quant": "keep"}, {"match": "*.ffn.down", "quant": "int8-g64"}]
    file = tmp_path / "mixed.json"
    file.write_text(json.dumps({"rules": rules, "rest": "int4_g32"}), encoding="utf-8")
    text = quant_text(file)
    assert json.loads(text) == {"rules": rules, "rest": "int4_g32"} and parse_recipe(text, "").text == text
    artifact = open_program(tiny, CompileOptions(quant=str(file)))
    assert artifact.card.options.quant == text
    module = artifact.program.modules["decode"]
    assert [graph.name for graph in module.layers] == ["decoder_layer", "decoder_layer.1"]
    kept, mixed = (str(graph) for graph in module.layers)
    assert "quantize(" not in kept
    assert mixed.count('{format = "int4-g32"}') == 6 and mixed.count('{format = "int8-g64"}') == 1
    calls = [op.callee for op in module.main.ops if op.callee]
    assert calls == ["decoder_layer", "decoder_layer.1", "decoder_layer.1"]
    assert open_program(tiny, CompileOptions(quant=str(file))).origin == "cache"
    file.write_text(json.dumps({"rules": rules[:1], "rest": "int4_g32"}), encoding="utf-8")
    assert open_program(tiny, CompileOptions(quant=str(file))).origin == "compiled"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "must be"),
        ('{"rules": [], "more": 1}', "must be"),
        ('{"rules": [{"match": "a"}]}', "rule 0 must be"),
        ('{"rules": [{"match": "a", "quant": 4}]}', "rule 0 must be"),
        ('{"rest": ""}', '"rest" must name'),
    ],
)
def test_recipes_that_are_none(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "recipe.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        quant_text(file)
    with pytest.raises(UsageError, match="cannot be read"):
        quant_text(tmp_path / "none.json")


def test_a_pattern_that_matches_nothing_is_a_mistake(tiny: Path) -> None:
    model = opened(tiny)
    assert model.spec is not None
    with pytest.raises(UsageError, match=r"'layers\.7\.\*' matches no weight"):
        text = '{"rules": [{"match": "layers.7.*", "quant": "int8"}]}'
        quant_plan(text, model.spec, imported_weight_types(model), default())


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "mixtral"])
def test_scaling_changes_no_answer(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rounding, what AWQ moves from one weight into another leaves the logits where they were."""
    monkeypatch.setattr(awq, "_POWERS", (0.5,))  # so that something is moved whether or not it helps
    write_tiny(tmp_path / "model", family=family)
    model = opened(tmp_path / "model")
    weights = ModelWeights(model, default())
    arrays = {key: weights.dense(key) for key in weights.keys}
    formats = default().quant_formats.by_name()
    moved = 0
    for layer in calibrated_layers(model, weights, IDS * 2, default()):
        # Formats of whole rows have no ranges that could shrink, so scaling is all that is done.
        made = awq.scale_by_activations(
            layer, {part: formats["int8"] for part, array in layer.weights.items() if array.ndim == 2}
        )
        for part, array in made.items():
            moved += 1
            assert not np.array_equal(array, layer.weights[part])
            arrays[f"layers.{layer.number}.{part}"] = array
    assert moved >= 4
    write_arrays(tmp_path / "scaled", model, "nothing", arrays)
    np.testing.assert_allclose(logits(tmp_path / "scaled"), logits(tmp_path / "model"), atol=2e-4)


def test_scaling_helps_where_a_channel_sticks_out(tiny: Path, tmp_path: Path) -> None:
    """A channel of the norm that is 40 times the others: its weights are rounded better, and so are the answers."""
    model = opened(tiny)
    weights = ModelWeights(model, default())
    arrays = {key: weights.dense(key).copy() for key in weights.keys}
    for number in range(3):
        arrays[f"layers.{number}.attn_norm"][[3, 40]] *= 40
        arrays[f"layers.{number}.ffn_norm"][[3, 40]] *= 40
    write_arrays(tmp_path / "spiked", model, "nothing", arrays)
    wanted = logits(tmp_path / "spiked")
    plain, scaled = (logits(tmp_path / "spiked", quant) for quant in ("int4-g32", "int4_awq"))
    assert np.square(scaled - wanted).mean() < 0.7 * np.square(plain - wanted).mean()


@pytest.mark.parametrize("tied", [True, False])
def test_a_float_twin_computes_the_same(tmp_path: Path, tied: bool) -> None:
    write_tiny(tmp_path / "model", family="qwen2", shape=TinyShape(tied=tied))
    model = opened(tmp_path / "model")
    assert model.spec is not None
    weights = ModelWeights(model, default())
    own = {key: weights.dense(key) for key in weights.keys}
    spec, arrays = float_twin(model.spec, own, seed=4)
    write_arrays(tmp_path / "twin", replace(model, spec=spec), "nothing", arrays)
    np.testing.assert_allclose(logits(tmp_path / "twin"), logits(tmp_path / "model"), atol=1e-4)
    assert not spec.tied_head and not np.array_equal(arrays["embed"], own["embed"])


def test_the_twin_of_smollm2_has_its_outliers_and_no_grid(smollm2_path: Path) -> None:
    """Two layers of it. Rounding to int4-g32 gives SmolLM2's own weights back exactly, and errs on the twin's."""
    model = opened(smollm2_path)
    assert model.spec is not None
    weights = ModelWeights(model, default())
    keys = [key for key in weights.keys if key.startswith(("layers.0.", "layers.1.", "embed", "norm"))]
    own = {key: weights.dense(key) for key in keys}
    own["embed"] = own["embed"][:4000]
    _, twin = float_twin(replace(model.spec, layers=model.spec.layers[:2]), own)
    format = default().quant_formats["int4-g32"]
    for key in ("layers.0.attn.q", "layers.1.ffn.gate", "layers.1.ffn.down"):
        np.testing.assert_array_equal(QuantArray.quantize(own[key], format).dense(), own[key])
        assert np.abs(QuantArray.quantize(twin[key], format).dense() - twin[key]).max() > 0.01
    folded = own["layers.0.attn.q"] * own["layers.0.attn_norm"]
    for before, after in ((folded, twin["layers.0.attn.q"]), (own["embed"], twin["embed"])):
        sizes = [np.sqrt(np.square(matrix).mean(axis=0)) for matrix in (before, after)]
        largest = [set(np.argsort(-size)[:3].tolist()) for size in sizes]
        assert largest[0] == largest[1]
        assert sizes[1].max() / np.median(sizes[1]) > 0.7 * sizes[0].max() / np.median(sizes[0]) > 3


def test_turns_are_small_and_orthogonal() -> None:
    turn = rotation(65, seed=1)
    np.testing.assert_allclose(turn @ turn.T, np.eye(65), atol=1e-12)
    assert np.diag(turn).min() > np.cos(np.radians(15)) ** 2 - 1e-12  # a channel stays mostly where it is


def test_the_command_writes_a_model_like_any_other(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "q")
    assert run(["quantize", str(tiny), "--quant", "int4_awq", "-o", target, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["after"] for row in report["weights"]} == {"int4-g32", "int8"}
    assert run(["quantize", str(tiny), "--quant", "int8", "-o", target]) == 0  # a checkpoint may be replaced
    assert "int8" in capsys.readouterr().out
    assert run(["run", target, "--prompt", "Hello", "--max-new-tokens", "3", "--backend", "cpu"]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    assert run(["quantize", str(tiny), "--quant", "int8", "-o", str(tmp_path / "mine")]) != 0
    assert "exists and is no checkpoint" in capsys.readouterr().err
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_a_recipe_that_changes_nothing_is_said(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "nothing.json"
    recipe.write_text("{}")
    assert run(["quantize", str(tiny), "--quant", str(recipe), "-o", str(tmp_path / "same")]) == 0
    assert "leaves every weight" in capsys.readouterr().err


def test_artifacts_hold_quantised_weights(tiny: Path, tmp_path: Path) -> None:
    """--materialise writes what the recipes made; an artifact cannot be quantised again."""
    arguments = [
        "compile",
        str(tiny),
        "-o",
        str(tmp_path / "a"),
        "--quant",
        "int4",
        "--materialise",
        "--max-seq",
        "128",
    ]
    assert run(arguments) == 0
    with Runtime(tmp_path / "a", "cpu") as runtime, runtime.session() as session:
        session.append(IDS)
        np.testing.assert_allclose(session.logits(), logits(tiny, "int4"), atol=1e-5)
    with pytest.raises(UsageError, match="is an artifact, whose weights are what they are"):
        Runtime(tmp_path / "a", "cpu", compile_options=CompileOptions(quant="int8"))


def test_a_changed_checkpoint_is_refused(tiny: Path, tmp_path: Path) -> None:
    assert run(["quantize", str(tiny), "--quant", "int8", "-o", str(tmp_path / "q")]) == 0
    marker = tmp_path / "q" / MARKER
    data = marker.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 25)):
        marker.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(MalformedModelError):
            opened(tmp_path / "q")
    marker.unlink()
    with pytest.raises(NoImporterError):
        opened(tmp_path / "q")


def test_a_calibrated_checkpoint_is_kept_until_the_cache_is_cleared(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "cache"))
    said: list[str] = []

    def quantised() -> int:
        open_program(tiny, CompileOptions(quant="int4_awq"), progress=said.append)
        return sum("quantising" in text for text in said)

    assert quantised() == quantised() == 1
    (kept,) = (tmp_path / "cache" / "quantised").iterdir()
    clear(tmp_path / "cache")
    assert not kept.exists()
    assert quantised() == 2
