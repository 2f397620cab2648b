"""The tiny model does what it is for (T0): clear leads, and tokens that change with any mistake in the maths."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from cacheir.errors import UsageError
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.huggingface.tokenizer import load_tokenizer
from cacheir_importers.tiny import CLEAR_PROMPTS, DEFAULT_SEED, write_tiny
from cacheir_importers.tiny_config import TinyShape

Array = np.ndarray[Any, Any]


def logits(folder: Path, ids: list[int], *, layout: str = "half", theta: float = 1e4, kv_map: str = "repeat") -> Array:
    """Logits f64 [T, V] of the Llama formula, written out here apart from the product's code."""
    weights = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
    heads, kv_heads, size = 4, 2, 16
    angles = np.arange(len(ids))[:, None, None] * theta ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angles), np.sin(angles)
    future = np.triu(np.ones((len(ids), len(ids)), bool), 1)

    def norm(x: Array, name: str) -> Array:
        scale: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]
        return scale

    def rotate(x: Array) -> Array:
        if layout == "none":
            return x
        halves = layout == "half"
        first, second = (x[..., : size // 2], x[..., size // 2 :]) if halves else (x[..., 0::2], x[..., 1::2])
        turned = (first * cos - second * sin, second * cos + first * sin)
        return np.concatenate(turned, -1) if halves else np.stack(turned, -1).reshape(x.shape)

    hidden = weights["model.embed_tokens.weight"][ids]
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        x = norm(hidden, f"{prefix}.input_layernorm")
        q, k, v = (x @ weights[f"{prefix}.self_attn.{part}_proj.weight"].T for part in "qkv")
        q = rotate(q.reshape(-1, heads, size))
        k, v = rotate(k.reshape(-1, kv_heads, size)), v.reshape(-1, kv_heads, size)
        spread = [0, 0, 1, 1] if kv_map == "repeat" else [0, 1, 0, 1]
        scores = np.einsum("thd,shd->hts", q, k[:, spread]) / np.sqrt(size)
        scores[:, future] = -np.inf
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", chances, v[:, spread]).reshape(len(ids), -1)
        hidden = hidden + mixed @ weights[f"{prefix}.self_attn.o_proj.weight"].T
        x = norm(hidden, f"{prefix}.post_attention_layernorm")
        gate = x @ weights[f"{prefix}.mlp.gate_proj.weight"].T
        up = x @ weights[f"{prefix}.mlp.up_proj.weight"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{prefix}.mlp.down_proj.weight"].T
    result: Array = norm(hidden, "model.norm") @ weights["lm_head.weight"].T
    return result


@pytest.fixture(scope="module")
def answers(tiny_folder: Path) -> dict[str, tuple[list[int], int]]:
    """Prompt -> ids of prompt and 64 greedy tokens, and how many ids the prompt has."""
    source = import_folder(tiny_folder, {}).tokenizer
    assert source is not None
    tokenizer = load_tokenizer(source)
    found = {}
    for prompt in CLEAR_PROMPTS:
        ids = tokenizer.encode(prompt)
        start = len(ids)
        for _ in range(64):
            ids.append(int(logits(tiny_folder, ids)[-1].argmax()))
        found[prompt] = (ids, start)
    return found


def test_the_best_token_leads_clearly(tiny_folder: Path, answers: dict[str, tuple[list[int], int]]) -> None:
    for ids, start in answers.values():
        top = np.sort(logits(tiny_folder, ids[:-1])[start - 1 :], axis=-1)[:, -2:]
        assert (top[:, 1] - top[:, 0]).min() > 0.1
        assert len(set(ids[start:])) > 20 and 1 not in ids  # no rut, no early end


@pytest.mark.parametrize(
    "mistake", [{"layout": "none"}, {"layout": "interleaved"}, {"theta": 5e5}, {"kv_map": "tile"}], ids=str
)
def test_every_mistake_changes_tokens(
    tiny_folder: Path, answers: dict[str, tuple[list[int], int]], mistake: dict[str, Any]
) -> None:
    for ids, start in answers.values():
        right = logits(tiny_folder, ids)[start:].argmax(-1)
        wrong = logits(tiny_folder, ids, **mistake)[start:].argmax(-1)
        assert (right != wrong).mean() > 0.4


def test_weights_are_large_enough(tiny_folder: Path) -> None:
    for name, tensor in load_file(tiny_folder / "model.safetensors").items():
        assert tensor.std() >= 0.1, name


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_arguments_give_equal_bytes(tmp_path: Path, tiny_folder: Path) -> None:
    write_tiny(tmp_path / "a", seed=DEFAULT_SEED)
    write_tiny(tmp_path / "b", seed=DEFAULT_SEED + 1)
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert first == contents(tiny_folder)
    assert [name for name in first if first[name] != second[name]] == ["model.safetensors"]
    for path in (tmp_path / "a").iterdir():
        assert path.stat().st_mode & 0o444 == 0o444


def test_other_shapes(tmp_path: Path) -> None:
    shape = TinyShape(hidden=48, layers=3, heads=6, kv_heads=3, head_dim=12, feed_forward=40, vocab=320, tied=True)
    shapes = write_tiny(tmp_path / "m", shape=shape)
    model = import_folder(tmp_path / "m", {})
    assert model.spec is not None and model.spec.tied_head and len(model.spec.layers) == 3
    assert {source.tensor: source.shape for source in model.sources.values()} == shapes
    assert model.tokenizer is not None and load_tokenizer(model.tokenizer).vocab_size == 320


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    for problem, arguments in {
        "at least 259 tokens, not 100": {"shape": TinyShape(vocab=100)},
        "at least 259 tokens, not 1$": {"shape": TinyShape(vocab=1)},
        "has at most .* tokens, not 999999999": {"shape": TinyShape(vocab=999_999_999)},
        "has at most .* tokens, not 100000": {"shape": TinyShape(vocab=100_000)},
        "no tiny model of family 'gpt'": {"family": "gpt"},
    }.items():
        with pytest.raises(UsageError, match=problem):
            write_tiny(tmp_path / "m", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="is not an empty folder"):
        write_tiny(tmp_path)
    assert contents(tmp_path) == {"mine": b"mine"}
    (tmp_path / "empty").mkdir()
    write_tiny(tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()


def test_the_command(tmp_path: Path) -> None:
    import typer

    from cacheir_importers.make_tiny import make_tiny

    app = typer.Typer()
    app.command()(make_tiny)
    run = CliRunner().invoke(app, [str(tmp_path / "m"), "--seed", "5", "--vocab", "310", "--layers", "1"])
    assert run.exit_code == 0, run.output
    assert "llama with 1 layers, hidden size 64, 310 tokens" in run.output and "cacheir run" in run.output
    assert json.loads((tmp_path / "m" / "config.json").read_text())["vocab_size"] == 310


@pytest.mark.skipif(os.name != "posix", reason="names are bytes there")
def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    write_tiny(tmp_path / os.fsdecode(b"\xfe"))
    assert (tmp_path / os.fsdecode(b"\xfe") / "tokenizer.json").is_file()
