"""SmolLM2's own weights as a mixture of experts: the first layers, each feed-forward copied into four experts whose
columns are permuted, a random router, two experts a token, renormalised. It equals the dense model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from cacheir import Runtime
from cacheir_importers.gguf.writer import TensorData, write_gguf
from cacheir_importers.models import find_smollm2

LAYERS, EXPERTS = 2, 4
PROMPT = [504, 3575, 282, 4649, 314, 7042, 30, 1116, 3575, 282]


def write_models(folder: Path) -> tuple[Path, Path]:
    """The dense file and the mixture. Gate and up stay in their blocks, whose rows are permuted; the columns of down
    lie across blocks, so that is stored in float32, in both."""
    random, reader = np.random.default_rng(11), GGUFReader(find_smollm2())
    dense: dict[str, TensorData] = {}
    mixture: dict[str, TensorData] = {}
    for tensor in reader.tensors:
        block, _, part = tensor.name.removeprefix("blk.").partition(".")
        if tensor.name.startswith("blk.") and int(block) >= LAYERS:
            continue
        kind, shape = tensor.tensor_type.name, tuple(map(int, reversed(tensor.shape)))
        data = np.ascontiguousarray(tensor.data)
        if part == "ffn_down.weight":
            kind, data = "F32", dequantize(data, tensor.tensor_type)
        dense[tensor.name] = TensorData(kind, shape, data.tobytes())
        if not part.startswith("ffn_") or part == "ffn_norm.weight":
            mixture[tensor.name] = dense[tensor.name]
            continue
        orders = [np.random.default_rng((int(block), expert)).permutation(1536) for expert in range(EXPERTS)]
        stacked = np.stack([data[:, order] if part == "ffn_down.weight" else data[order] for order in orders])
        name = tensor.name.replace(".weight", "_exps.weight")
        mixture[name] = TensorData(kind, (EXPERTS, *shape), stacked.tobytes())
        router = (random.standard_normal((EXPERTS, 576)) * 0.2).astype(np.float32)
        mixture[f"blk.{block}.ffn_gate_inp.weight"] = TensorData("F32", router.shape, router.tobytes())
    metadata: dict[str, Any] = {
        key: field.contents()
        for key, field in reader.fields.items()
        if key.startswith("llama.") or key == "general.architecture"
    }
    metadata["llama.block_count"] = LAYERS
    metadata["llama.vocab_size"] = 49152
    paths = folder / "dense.gguf", folder / "mixture.gguf"
    write_gguf(paths[0], metadata, dense)
    write_gguf(paths[1], {**metadata, "llama.expert_count": EXPERTS, "llama.expert_used_count": 2}, mixture)
    return paths


def answers(path: Path) -> tuple[Any, list[int]]:
    """Logits of the prompt and of tokens after it, and greedy tokens."""
    with Runtime(path, backend="cpu", max_seq=64) as runtime:
        with runtime.session() as session:
            session.append(PROMPT)
            logits = [session.logits()]
            for token in PROMPT[:2]:
                session.append([token])
                logits.append(session.logits())
        return np.array(logits), list(runtime.generate_ids(PROMPT, 6, ignore_eos=True))


def test_a_mixture_of_real_weights_equals_its_dense_model(tmp_path: Path) -> None:
    paths = write_models(tmp_path)
    (dense, tokens), (mixed, mixed_tokens) = map(answers, paths)
    assert np.abs(dense).max() > 1 and len(set(tokens)) > 1
    assert np.abs(dense - mixed).max() <= 1e-3
    assert tokens == mixed_tokens
    # With the rows of one matrix out of step with the others it is another model.
    reader = GGUFReader(paths[1], "r+")
    (up,) = (tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_up_exps.weight")
    up.data[...] = up.data[:, ::-1].copy()
    del up, reader
    broken, _ = answers(paths[1])
    assert np.abs(dense - broken).max() > 1
