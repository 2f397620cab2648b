"""A model with tensors of every type gives what it gives with the same numbers in F32; split, it gives the same too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import _type_traits, dequantize
from numpy.typing import NDArray

from cacheir.models.decoder_graph import build_logical, weight_types
from cacheir.plugins.installation import default
from cacheir.reference.interpreter import Interpreter
from cacheir.weights.sources import WeightFiles
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.gguf.tensor_types import type_by_name
from cacheir_importers.gguf.writer import TensorData, Typed, write_gguf

HIDDEN, VOCABULARY, HEAD, FEED_FORWARD = 256, 48, 64, 256
NUMBERS = {"F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
TYPES = [*NUMBERS, "F16", "BF16", *(kind.name for kind in _type_traits if kind.name != "BF16")]
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": VOCABULARY,
}
MATRICES = {
    "token_embd.weight": (VOCABULARY, HIDDEN),
    "blk.0.attn_q.weight": (4 * HEAD, HIDDEN),
    "blk.0.attn_k.weight": (2 * HEAD, HIDDEN),
    "blk.0.attn_v.weight": (2 * HEAD, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, 4 * HEAD),
    "blk.0.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
    "blk.0.ffn_up.weight": (FEED_FORWARD, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, FEED_FORWARD),
}
NORMS = ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight")


def values_of(kind: str, stored: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if kind in NUMBERS:
        return np.frombuffer(stored, NUMBERS[kind]).astype(np.float32).reshape(shape)
    raw = np.frombuffer(stored, np.uint8).reshape(shape[0], -1)
    return dequantize(raw, GGMLQuantizationType[kind]).reshape(shape)


def random_tensor(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> bytes:
    """Random blocks whose numbers are finite and not large."""
    if kind in NUMBERS:
        return (
            (rng.integers(-3, 4, shape) if kind != "F64" else rng.standard_normal(shape))
            .astype(NUMBERS[kind])
            .tobytes()
        )
    type_ = type_by_name(kind)
    count = int(np.prod(shape)) // type_.block_elements
    blocks = rng.integers(0, 256, (count, type_.block_bytes), dtype=np.uint8)
    for _ in range(200):
        with np.errstate(all="ignore"):
            found = np.abs(values_of(kind, blocks.tobytes(), (count, type_.block_elements)))
            wild = ~(found.max(axis=1) < 50)  # NaN is wild
        if not wild.any():
            return blocks.tobytes()
        blocks[wild] = rng.integers(0, 256, (int(wild.sum()), type_.block_bytes), dtype=np.uint8)
    raise AssertionError(f"no tame blocks of {kind}")


def logits(path: Path) -> NDArray[np.float32]:
    model = import_gguf(path, {})
    assert model.spec is not None
    ops = default().ops.by_name()
    module = build_logical(model.spec, weight_types(model.sources), ops=ops)
    interpreter = Interpreter(ops, WeightFiles(model.root, model.sources, default().quant_formats.by_name()).array)
    tokens = np.array([1, 5, 9, 2, 40], np.int32)
    inputs = [tokens, np.arange(5, dtype=np.int32), np.array([0, 5], np.int32)]
    (hidden,) = interpreter.run(module, module.main, inputs)
    (found,) = interpreter.run(module, module.graph("head.logits"), [hidden])
    return np.asarray(found)


def tensors_of(kind: str) -> dict[str, TensorData]:
    rng = np.random.default_rng(11)
    ones = np.ones(HIDDEN, np.float32).tobytes()
    tensors = {name: TensorData("F32", (HIDDEN,), ones) for name in NORMS}
    return tensors | {
        name: TensorData(kind, shape, random_tensor(rng, kind, shape)) for name, shape in MATRICES.items()
    }


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_in_every_place(tmp_path: Path, kind: str) -> None:
    tensors = tensors_of(kind)
    write_gguf(tmp_path / "stored.gguf", METADATA, tensors)
    dense = dict(tensors)
    for name, shape in MATRICES.items():
        values = values_of(kind, tensors[name].data, shape).astype(np.float32)
        dense[name] = TensorData("F32", shape, values.tobytes())
    write_gguf(tmp_path / "dense.gguf", METADATA, dense)
    found = logits(tmp_path / "stored.gguf")
    assert np.isfinite(found).all() and found.std() > 0
    np.testing.assert_allclose(found, logits(tmp_path / "dense.gguf"), rtol=1e-5, atol=1e-5 * np.abs(found).max())


def test_a13_a_split_model_is_the_unsplit_one(tmp_path: Path) -> None:
    tensors = tensors_of("Q4_K")
    write_gguf(tmp_path / "whole.gguf", METADATA, tensors)
    names = list(tensors)
    for number in range(3):
        split = {"split.no": Typed("u16", number), "split.count": Typed("u16", 3), "split.tensors.count": len(names)}
        part = {name: tensors[name] for name in names[number::3]}
        metadata = {**METADATA, **split} if number == 0 else split
        write_gguf(tmp_path / f"m-{number + 1:05}-of-00003.gguf", metadata, part)
    np.testing.assert_array_equal(logits(tmp_path / "m-00001-of-00003.gguf"), logits(tmp_path / "whole.gguf"))
