"""The models of parity: eager logits beside another's, answers that depend on the layers, and the row of repeats.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the script measures what runs on it")

from cacheir_importers.tiny_config import TinyShape  # noqa: E402

FAMILIES = ("qwen3", "qwen2")
CUTS = (5, 6, 17, *range(30, 41))


@pytest.fixture(params=FAMILIES)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model of the family's name, with the row's prompt and cuts made as small."""
    models, clear, batch = (importlib.import_module(name) for name in ("random_models", "clear_models", "batch_run"))
    family: str = request.param
    shape = TinyShape(
        hidden=256,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=64,
        feed_forward=512,
        vocab=1200,
        positions=4096,
        tied=family == "qwen3",
    )
    monkeypatch.setitem(models.SHAPES, family, (family, shape))
    monkeypatch.setitem(clear.CALM, family, clear.Scales(embedding=10.0, out=4.0, down=16.0, scores=2.0))
    monkeypatch.setattr(clear, "FIRST_ANSWER", 1100)
    monkeypatch.setattr(batch, "PARITY_PROMPT", 40)
    monkeypatch.setattr(batch, "PARITY_CUTS", CUTS)
    monkeypatch.setattr(batch, "ids", lambda length, seed: [3 + (7919 * at + seed) % 1000 for at in range(length)])
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    with torch.no_grad():
        yield family


def clear_tensors(name: str) -> tuple[Any, list[int], list[int]]:
    clear, batch = importlib.import_module("clear_models"), importlib.import_module("batch_run")
    prompt, positions = batch.ids(batch.PARITY_PROMPT, 5), [cut - 1 for cut in CUTS]
    return clear.clear_model(name, "cpu", prompt, positions), prompt, positions


def eager(tensors: Any, name: str) -> Any:
    models, prompts = importlib.import_module("random_models"), importlib.import_module("eager_prompt")
    return prompts.EagerPrompt(tensors, models.SHAPES[name][1], 1e-5)


def test_eager_logits_are_those_of_transformers(small: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers, the other engine, is not installed")
    tensors, prompt, positions = clear_tensors(small)
    importlib.import_module("random_models").write_tensors(tmp_path / small, small, tensors)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / small, dtype=torch.float32, attn_implementation="eager"
    )
    other = model(torch.tensor([prompt])).logits[0, positions]
    torch.testing.assert_close(eager(tensors, small).logits(prompt, positions), other, rtol=1e-4, atol=1e-4)


def test_answers_are_as_planted_and_depend_on_the_layers(small: str) -> None:
    tensors, prompt, positions = clear_tensors(small)
    exact = eager(tensors, small).logits(prompt, positions)
    assert exact.argmax(1).tolist() == [1100 + at for at in range(len(CUTS))]
    rounding = importlib.import_module("rounding_run")
    bare = rounding.without(tensors, ("o_proj.weight", "down_proj.weight"))
    found = importlib.import_module("clear_models").compared(eager(bare, small).logits(prompt, positions), exact)
    assert found["tokens_changed"] > 0.5


def test_the_row_of_repeats_on_the_processor(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    repeats = importlib.import_module("repeats")
    batch = importlib.import_module("batch_run")
    for name in ("PARITY_PROMPT", "PARITY_CUTS", "ids"):
        monkeypatch.setattr(repeats, name, getattr(batch, name))
    monkeypatch.setattr(repeats, "DEVICE", "cpu")
    row = repeats.logits(small)
    assert row["launches_in_float32"] < 1e-4 < max(row["relative_error"]) < 0.03
    assert row["wrong_clear"] == 0 and row["share_left_out"] <= 0.05 and row["bit_equal_again"]
    assert row["distinct_tokens"] == len(CUTS) and 0 < row["eager_bfloat16"]["largest"] < 0.05


def test_a_wrong_token_at_a_clear_place_counts() -> None:
    compared = importlib.import_module("clear_models").compared
    exact = torch.tensor([[1.0, 0.2, 0.0], [1.0, 0.9, 0.0], [0.0, 0.1, 1.0]])
    found = exact.clone()
    found[1, 1] = 1.05  # an error of 0.15: margins of 0.6 and less are too close
    made = compared(found, exact)
    assert made["wrong_clear"] == 0 and made["share_left_out"] == pytest.approx(1 / 3)
    assert made["tokens_changed"] == pytest.approx(1 / 3) and made["largest"] == pytest.approx(0.15)
