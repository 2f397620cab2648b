"""Quality: perplexity, divergence and agreement against their formulas; attribution finds the part that was spoilt."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cacheir.cli.main import run
from cacheir.compile import compile_model
from cacheir.errors import UsageError
from cacheir.models.find_model import ModelSource, find_importer, open_model
from cacheir.plugins.installation import default
from cacheir.quality.compare import compare
from cacheir.quality.protocol import Protocol, protocol
from cacheir.quality.run import Subject, TextChoice, baseline, compared
from cacheir.quality.swapped import attribute, module_of
from cacheir.quantisers.checkpoint import write_arrays
from cacheir.quantisers.model_weights import ModelWeights
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 12


def quiet(text: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny(folder, shape=TinyShape(layers=2))
    return folder


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def test_against_the_formulas() -> None:
    random = np.random.default_rng()
    windows = tuple(tuple(random.integers(0, 11, 8).tolist()) for _ in range(3))
    logits = random.standard_normal((2, 3, 4, 11)) * 3
    p, q = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    found = compare(
        list(np.log(p).astype(np.float32)), list(np.log(q).astype(np.float32)), Protocol(windows=windows, sha256="")
    )
    taken = np.array(windows)[:, 4:, None]
    assert found.tokens == 12
    assert found.baseline_perplexity == pytest.approx(np.exp(-np.log(np.take_along_axis(p, taken, 2)).mean()), rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(-np.log(np.take_along_axis(q, taken, 2)).mean()), rel=1e-5)
    divergence = (p * np.log(p / q)).sum(axis=-1)
    assert found.mean_kl == pytest.approx(divergence.mean(), rel=1e-4)
    assert found.max_kl == pytest.approx(divergence.max(), rel=1e-4)
    assert found.top1 == pytest.approx((p.argmax(axis=-1) == q.argmax(axis=-1)).mean())


def test_windows() -> None:
    cut = protocol("text", list(range(40)), window=12, windows=2, skip=1)
    assert cut.windows == (tuple(range(12, 24)), tuple(range(24, 36))) and cut.scored == 12
    with pytest.raises(UsageError, match="not 4 windows of 12"):
        protocol("text", list(range(40)), window=12, skip=3)


def test_a_model_is_no_way_from_itself(tiny: Path) -> None:
    choice = TextChoice(text=TEXT, window=48)
    reference = baseline(Subject(model=tiny), choice, default(), quiet)
    same, _ = compared(Subject(model=tiny), choice, reference, default(), quiet)
    assert same.mean_kl == same.max_kl == 0 and same.top1 == 1 and same.perplexity_change == 0
    for form in ({"quant": "int8"}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8"}):
        other, _ = compared(Subject(model=tiny, **form), choice, reference, default(), quiet)  # type: ignore[arg-type]
        assert 0 < other.mean_kl < 0.05


def test_attribution_names_the_part_that_was_spoilt(tiny: Path, tmp_path: Path) -> None:
    """Three weights are changed, one of them much: three modules, and its own comes out worst."""
    model = open_model(ModelSource(tiny, find_importer(tiny, default()), "tiny"), default())
    weights = ModelWeights(model, default())
    arrays = {key: weights.dense(key).copy() for key in weights.keys}
    random = np.random.default_rng(2)
    for key, size in (("layers.0.attn.v", 0.01), ("layers.1.ffn.up", 0.5), ("head", 0.01)):
        arrays[key] *= (1 + size * random.standard_normal(arrays[key].shape)).astype(np.float32)
    write_arrays(tmp_path / "spoilt", model, "nothing", arrays)
    choice = TextChoice(text=TEXT, window=48, windows=2)
    reference = baseline(Subject(model=tiny), choice, default(), quiet)
    whole, judged = compared(Subject(model=tmp_path / "spoilt"), choice, reference, default(), quiet)
    found = {
        part.module: part.comparison.mean_kl
        for part in attribute(reference.artifact, judged, reference.answers, reference.protocol, default())
    }
    assert list(found) == ["layers.0.attn", "layers.1.ffn", "head"]
    assert found["layers.1.ffn"] > 10 * max(found["layers.0.attn"], found["head"]) > 0
    assert found["layers.1.ffn"] == pytest.approx(whole.mean_kl, rel=0.2)


def test_modules() -> None:
    keys = ["embed", "layers.3.attn_norm", "layers.3.attn.q", "layers.10.ffn.experts.2.up", "norm", "head_bias"]
    assert [module_of(key) for key in keys] == [
        "embed",
        "layers.3.attn",
        "layers.3.attn",
        "layers.10.ffn",
        "norm",
        "head",
    ]


def test_the_command(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    common = ["quality", str(tiny), "--text", str(text), "--window", "32", "--windows", "1"]
    assert run([*common, "--quant", "int4", "--attribute", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["comparison"]["mean_kl"] > 0 and report["text"]["scored"] == 16
    assert {part["module"] for part in report["attribution"]} == {
        "embed", "head", *(f"layers.{n}.{part}" for n in range(2) for part in ("attn", "ffn")),
    }  # fmt: skip
    assert {change["format"] for change in report["weights"]} == {"int4-g32", "int8"}
    assert run([*common, "--kv-dtype", "fp8"]) == 0
    assert "mean KL divergence" in capsys.readouterr().out
    assert run(common) != 0 and "nothing to compare with" in capsys.readouterr().err
    assert run([*common, "--quant", "int8", "--attribute", "--backend", "native"]) != 0


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "quality.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_quality", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_quantisers_on_the_float_twin(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark, on one short window a stretch and the forms that its marks are about."""
    forms = ["int8", "int4-g32", "int4-g32, calibrated", "q4_1 as ggml rounds", "fp8-e4m3", "kv int8", "kv fp8"]
    report = _benchmark().measure(str(smollm2_path), windows=1, window=256, forms=forms)
    assert all(report["marks"].values()), report["marks"]
    assert report["forms"]["kv int8"]["all"]["mean_kl"] < 0.01


def test_the_report_that_is_kept_holds_its_marks() -> None:
    """benchmarks/quality.json: written by benchmarks/quality.py; every mark was measured and none was missed."""
    module = _benchmark()
    report = json.loads((Path(__file__).parents[2] / "benchmarks" / "quality.json").read_text(encoding="utf-8"))
    assert set(report["forms"]) <= {"the model itself", *module.FORMS}
    assert len(report["marks"]) == 6 and all(report["marks"].values())
    assert report["marks"] == module.marks(report["twin"]["largest_difference"], report["forms"])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (["no-such-model"], "there is no model at no-such-model"),
        (["--quant", "int3"], "int3"),
        (["ARTIFACT", "--quant", "int4"], "whose weights are what they are"),
    ],
)
def test_the_second_model_is_checked_before_the_first_is_scored(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], second: list[str], said: str
) -> None:
    if "ARTIFACT" in second:
        compile_model(tiny, target="cpu", output=tmp_path / "ARTIFACT")
    words = [str(tmp_path / word) if word == "ARTIFACT" else word for word in second]
    assert run(["quality", str(tiny), *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors and "scoring" not in errors and "loading" not in errors


def test_tokenizers_that_differ_are_found_before_a_weight_is_read(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path / "model", family="qwen2")
    other = tmp_path / "model" / "tokenizer.json"
    table = json.loads(other.read_text(encoding="utf-8"))
    merges = table["model"]["merges"]
    assert len(merges) > 1
    table["model"]["merges"] = merges[:1]
    other.write_text(json.dumps(table), encoding="utf-8")
    assert run(["quality", str(tiny), str(tmp_path / "model"), "--window", "16"]) == 2
    errors = capsys.readouterr().err
    assert "different tokens" in errors and "scoring" not in errors and "loading" not in errors
