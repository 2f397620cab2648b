"""Logits far beyond the length that a scaled rotation was made for, beside transformers': reports B04 and B05.

Rotation depends on the positions that tokens are given, and attention on their order alone: tokens may lie far apart
and still be few. So both sides are given the same sparse positions; one long text of consecutive ones is marked slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import gguf_twin, runnable

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.formats.table import core_formats
from cacheir.models.decoder_graph import SizeLimits, build_logical, weight_types
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import default
from cacheir.reference.interpreter import Interpreter
from cacheir.runtime.executor import Row, Step
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing import FamilyTests
from cacheir.weights.sources import WeightFiles
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.gguf.writer import TensorData, write_gguf
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

POSITIONS = (0, 1, 5, 17, 100, 101, 4095, 4097, 9000, 9001, 39_998, 40_000)
IDS = [3 + (index * index * 7 + 11 * index) % 280 for index in range(len(POSITIONS))]
T0 = TinyShape(positions=131_072)
B04 = TinyShape(heads=2, kv_heads=1, head_dim=64, positions=131_072)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}
# The cases of B05, and what is left of the rotation's magnitude in each.
YARNS: dict[str, tuple[dict[str, Any], float]] = {
    "explicit": ({**YARN, "attention_factor": 1.0}, 1.0),
    "derived": (YARN, 1.4158883),
    "pair": ({**YARN, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
    "no-factor": ({**YARN, "factor": None}, 0.1 * math.log(131_072 / 4096) + 1),
    "betas": ({**YARN, "beta_fast": 48.0, "beta_slow": 2.0}, 1.4158883),
    "not-truncated": ({**YARN, "truncate": False}, 1.4158883),
}
FACTORS = [1.0 + 0.37 * pair for pair in range(8)]
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096, "factor": 32.0}
# Other types whose frequencies are bent.
OTHERS: dict[str, dict[str, Any]] = {
    "longrope": {**LONGROPE, "short_factor": FACTORS, "long_factor": [1.3 * factor for factor in FACTORS]},
    "linear": {"rope_type": "linear", "factor": 8.3},
    "dynamic": {"rope_type": "dynamic", "factor": 16.0},
    "llama3": {**LLAMA3, "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 3.5},
}


@pytest.fixture(params=["cpu", "native", "cuda"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    monkeypatch.setenv("CACHEIR_CUDA_DTYPE", "float32")
    return runnable(request.param)


def write(folder: Path, scaling: Mapping[str, Any], *, shape: TinyShape = T0, theta: float = 500_000.0) -> Path:
    """A Llama with this scaling, in today's spelling."""
    write_tiny(folder, shape=shape, changes=changed(scaling, theta))
    return folder


def changed(scaling: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """The changes to a config.json that scale its rotation."""
    changes: dict[str, Any] = {"rope_theta": None, "rope_parameters": {**scaling, "rope_theta": theta}}
    # Dynamic NTK is for texts beyond the context, and makes it longer by its factor.
    return {**changes, "max_position_embeddings": 4096} if scaling.get("rope_type") == "dynamic" else changes


def with_divisors(folder: Path) -> Path:
    """The same model as GGUF, where llama3's scaling is a tensor of divisors."""
    (rope,) = {layer.rope for layer in spec_of(import_folder(folder, {})).layers}
    assert rope is not None
    metadata, tensors = gguf_twin(folder)
    divisors = np.array(rope.factors, np.float32)
    tensors["rope_freqs.weight"] = TensorData("F32", divisors.shape, divisors.tobytes())
    path = folder.with_suffix(".gguf")
    write_gguf(path, metadata, tensors)
    return path


def spec_of(model: ImportedModel) -> Any:
    assert model.spec is not None
    return model.spec


def theirs(folder: Path, ids: list[int], positions: tuple[int, ...] | None = None) -> np.ndarray:
    """transformers' logits; the mask says that all tokens are one text, however far apart they lie."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    given = {} if positions is None else {"position_ids": torch.tensor([positions])}
    with torch.no_grad():
        mask = torch.ones(1, len(ids), dtype=torch.long)
        found: np.ndarray = model(torch.tensor([ids]), attention_mask=mask, use_cache=False, **given).logits[0].numpy()
    return found


def ours(model: ImportedModel, positions: tuple[int, ...] = POSITIONS) -> np.ndarray:
    """The logits of the model's meaning at such positions."""
    spec, ops = spec_of(model), default().ops.by_name()
    families, limits = default().families.by_name(), SizeLimits(max_seq=max(positions) + 1)
    module = build_logical(spec, weight_types(model.sources), ops=ops, families=families, limits=limits)
    interpreter = Interpreter(ops, WeightFiles(model.root, model.sources, core_formats()).array)
    given = {
        "tokens": np.array(IDS, np.int32),
        "positions": np.array(positions, np.int32),
        "row_starts": np.array([0, len(IDS)], np.int32),
        "sequence_lengths": np.full(len(IDS), max(positions) + 1, np.int32),
    }
    (hidden,) = interpreter.run(module, module.main, [given[value.name] for value in module.main.inputs])
    (logits,) = interpreter.run(module, module.graph("head.logits"), [hidden])
    return np.asarray(logits)


def apart(made: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(made - expected).max())


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_b04_llama3_at_0_100_and_9000(tmp_path: Path, spelling: str) -> None:
    section = {(spelling if key == "rope_type" else key): value for key, value in LLAMA3.items()}
    folder = write(tmp_path / "model", section, shape=B04)
    expected = theirs(write(tmp_path / "same", LLAMA3, shape=B04), IDS, POSITIONS)
    twin = with_divisors(folder)
    for model in (import_folder(folder, {}), import_gguf(twin, {})):
        assert apart(ours(model), expected) <= FamilyTests.tolerance
    unscaled = import_folder(write(tmp_path / "unscaled", {"rope_type": "default"}, shape=B04), {})
    assert apart(ours(unscaled)[:2], expected[:2]) <= 1e-2, "near the beginning nobody sees that the scaling is lost"
    assert apart(ours(unscaled)[8:], expected[8:]) > 100 * FamilyTests.tolerance


@pytest.mark.parametrize("name", YARNS)
def test_b05_yarn_at_5_and_40000(tmp_path: Path, name: str) -> None:
    scaling, magnitude = YARNS[name]
    folder = write(tmp_path / "model", scaling, theta=10_000.0)
    model, expected = import_folder(folder, {}), theirs(folder, IDS, POSITIONS)
    rope = spec_of(model).layers[0].rope
    assert rope is not None and rope.magnitude == pytest.approx(magnitude, abs=1e-6)
    assert apart(ours(model), expected) <= FamilyTests.tolerance
    assert apart(ours(model, tuple(range(len(IDS)))), expected) > 100 * FamilyTests.tolerance


@pytest.mark.parametrize("name", OTHERS)
def test_b05_other_scalings_at_5_and_40000(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "model", OTHERS[name], theta=10_000.0)
    assert apart(ours(import_folder(folder, {})), theirs(folder, IDS, POSITIONS)) <= FamilyTests.tolerance


@pytest.mark.parametrize("name", ["derived", "betas", "not-truncated", *OTHERS])
@pytest.mark.parametrize("end", [4101, 40_001])
def test_b05_every_backend_far_out(tmp_path: Path, backend: str, name: str, end: int) -> None:
    """One chunk of a text that ends there. A window hides what comes before, which is why that need not be computed."""
    folder, count, window = tmp_path / "model", 24, 5
    scaling = YARNS[name][0] if name in YARNS else OTHERS[name]
    changes = {**changed(scaling, 10_000.0), "sliding_window": window}
    write_tiny(folder, family="mistral", shape=T0, changes=changes)
    tokens = [3 + (index * index * 7 + 11 * index) % 280 for index in range(count)]
    expected = theirs(folder, tokens, tuple(range(end - count, end)))[-1]
    options = CompileOptions(target=backend, precise=True)
    hidden = (end - count - window) // 16
    with Runtime(folder, backend, compile_options=options, max_seq=40_960) as runtime:
        executor: Any = runtime._model.runner._executor
        pages = ((*[0] * hidden, 1, 2, 3, 4),)  # those before are not read
        first = {"slot": 0, "position": end - count, "pages": pages, "sampling": SamplingParams()}
        row = Row(tokens=tuple(tokens), want="logits", length=end, **first)
        (found,) = executor.wait(executor.submit(Step(mode="prefill", rows=(row,)))).rows
        assert apart(found.logits[-1], expected) <= FamilyTests.tolerance


@pytest.mark.slow
def test_b04_a_text_of_9001_tokens(tmp_path: Path) -> None:
    """What the runtime answers after each of the last tokens, from pages, with prompts in chunks."""
    folder = write(tmp_path / "model", LLAMA3)
    ids = [3 + (index * index * 5 + 11 * index) % 280 for index in range(9001)]
    expected = theirs(folder, ids)
    for path in (folder, with_divisors(folder)):
        with Runtime(path, backend="cpu", max_seq=9216) as runtime, runtime.session() as session:
            session.append(ids[:8999])
            assert apart(session.logits(), expected[8998]) <= FamilyTests.tolerance
            for position in (8999, 9000):
                session.append([ids[position]])
                assert apart(session.logits(), expected[position]) <= FamilyTests.tolerance
