"""Parity and times of the CUDA backend on a bare machine with torch: python first_run.py OUT.json [ROW...]."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report_rows import ReportRows
from safetensors.torch import save_file

from cacheir import Runtime
from cacheir_importers.tiny import write_json, write_tiny
from cacheir_importers.tiny_config import TinyShape, tiny_config

QWEN3_06B = TinyShape(
    hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, feed_forward=3072, vocab=151936, positions=4096,
    rope_theta=1e6, tied=True,
)  # fmt: skip
PROMPTS = (16, 512, 2048)
SAMPLES = 7


def write_random(folder: Path, family: str, shape: TinyShape) -> None:
    """A model of ``shape`` with weights N(0, 0.02) in bfloat16, norms 1, and without a tokenizer: all ids are known."""
    config = tiny_config(family, shape)
    torch.manual_seed(7)
    tensors: dict[str, torch.Tensor] = {}

    def matrix(name: str, *size: int) -> None:
        tensors[name] = (torch.randn(size, dtype=torch.float32) * 0.02).to(torch.bfloat16)

    matrix("model.embed_tokens.weight", shape.vocab, shape.hidden)
    tensors["model.norm.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        matrix(f"{at}.self_attn.q_proj.weight", shape.heads * shape.head_dim, shape.hidden)
        matrix(f"{at}.self_attn.k_proj.weight", shape.kv_heads * shape.head_dim, shape.hidden)
        matrix(f"{at}.self_attn.v_proj.weight", shape.kv_heads * shape.head_dim, shape.hidden)
        matrix(f"{at}.self_attn.o_proj.weight", shape.hidden, shape.heads * shape.head_dim)
        matrix(f"{at}.mlp.gate_proj.weight", shape.feed_forward, shape.hidden)
        matrix(f"{at}.mlp.up_proj.weight", shape.feed_forward, shape.hidden)
        matrix(f"{at}.mlp.down_proj.weight", shape.hidden, shape.feed_forward)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
        for norm in ("q_norm", "k_norm"):
            tensors[f"{at}.self_attn.{norm}.weight"] = torch.ones(shape.head_dim, dtype=torch.bfloat16)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {**config, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def forced_logits(runtime: Runtime, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """Logits after the prompt and after each of ``tokens``, fed one by one."""
    with runtime.session() as session:
        session.append(prompt)
        made = [session.logits()]
        for token in tokens:
            session.append([token])
            made.append(session.logits())
    return np.array(made)


def parity(folder: Path, count: int = 32, **options: Any) -> dict[str, Any]:
    """Logits and greedy tokens beside the NumPy backend, on its tokens; a margin below 4 x the error is left out."""
    prompt = [3 + (i * i * 7 + i) % 280 for i in range(21)]
    with Runtime(folder, backend="cpu", max_seq=256) as reference:
        tokens = list(reference.generate_ids(prompt, count, ignore_eos=True, temperature=0.0))
        expected = forced_logits(reference, prompt, tokens)
    with Runtime(folder, backend="cuda", max_seq=256, **options) as runtime:
        found = forced_logits(runtime, prompt, tokens)
        runs = [list(runtime.generate_ids(prompt, count, ignore_eos=True, temperature=0.0)) for _ in range(3)]
        counters = dict(runtime.counters())
    error = float(np.abs(found - expected).max())
    top = np.sort(expected, axis=1)
    clear = (top[:, -1] - top[:, -2]) > 4 * error
    wrong = int((found.argmax(1) != expected.argmax(1))[clear].sum())
    return {
        "relative_error": error / float(np.abs(expected).max()),
        "wrong_clear_positions": wrong,
        "share_left_out": 1 - float(clear.mean()),
        "greedy_equal": runs[0] == tokens,
        "repeats_equal": all(run == runs[0] for run in runs),
        "counters": counters,
    }


def times(folder: Path, **options: Any) -> dict[str, Any]:
    """TTFT and TPOT in milliseconds through ``Runtime``: wall clock, ids visible to the host."""
    rows: dict[str, Any] = {}
    started = time.perf_counter()
    with Runtime(folder, backend="cuda", max_seq=2304, chunk_tokens=2048, **options) as runtime:
        rows["open_s"] = time.perf_counter() - started
        for length in PROMPTS:
            first, whole = [], []
            for sample in range(SAMPLES + 2):
                prompt = [3 + (i * 7919 + sample * 104729 + length) % 150000 for i in range(length)]
                stamps = [time.perf_counter()]
                for _ in runtime.generate_ids(prompt, 129, ignore_eos=True, temperature=0.0):
                    stamps.append(time.perf_counter())
                first.append(1e3 * (stamps[1] - stamps[0]))
                whole.append(1e3 * (stamps[-1] - stamps[1]) / 128)
            rows[str(length)] = {
                "ttft_ms": statistics.median(first[2:]), "tpot_ms": statistics.median(whole[2:]),
                "ttft_samples": first, "tpot_samples": whole,
            }  # fmt: skip
        rows["memory"] = dataclasses.asdict(runtime.memory())
        rows["counters"] = dict(runtime.counters())
    return rows


def main() -> None:
    """Write every row as soon as it is there."""
    keep = ReportRows(Path(sys.argv[1]), sys.argv[2:]).keep
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for family in ("llama", "qwen3"):
            write_tiny(root / family, family=family)
            keep(f"parity_{family}", lambda family=family: parity(root / family))
        write_random(root / "q06", "qwen3", QWEN3_06B)
        keep("times_q06_kv_bf16", lambda: times(root / "q06", kv_dtype="bf16"))
        keep("times_q06_kv_f32", lambda: times(root / "q06"))
        keep("parity_q06", lambda: parity(root / "q06", 8))


if __name__ == "__main__":
    main()
