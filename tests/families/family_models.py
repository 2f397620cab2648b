"""The models that are compared with transformers, which is the oracle: each family's tiny model, and changes to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROTATION_ENDS = 32  # the length that scaled rotations were made for: prompts of the tests go beyond it


def _scaled(**rope: Any) -> dict[str, Any]:
    return {"rope_theta": None, "rope_parameters": {"rope_theta": 10_000.0, **rope}}


def _tables(pairs: int) -> dict[str, Any]:
    return {
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [2.0 + 0.5 * pair for pair in range(pairs)],
    }


# name -> the family and the changes to its config.json
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama-dynamic": (
        "llama",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}, "max_position_embeddings": ROTATION_ENDS},
    ),
    "llama-llama3": (
        "llama",
        _scaled(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=ROTATION_ENDS,
        ),
    ),
    "llama-yarn": ("llama", _scaled(rope_type="yarn", factor=8.0, original_max_position_embeddings=ROTATION_ENDS)),
    "llama-longrope": (
        "llama",
        _scaled(rope_type="longrope", original_max_position_embeddings=ROTATION_ENDS, factor=4.0, **_tables(8)),
    ),
    "mistral": ("mistral", {}),
    "mixtral-window": ("mixtral", {"sliding_window": 9}),
    "mistral-wide-heads": ("mistral", {"head_dim": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen2-yarn": ("qwen2", _scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=ROTATION_ENDS)),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen2_moe-mixed": (
        "qwen2_moe",
        {
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3-yarn": (
        "qwen3",
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": ROTATION_ENDS}},
    ),
    "smollm3": ("smollm3", {}),
    "smollm3-windows": (
        "smollm3",
        {
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "phi3": ("phi3", {}),
    "phi3-longrope": (
        "phi3",
        {
            "original_max_position_embeddings": ROTATION_ENDS,
            "rope_scaling": {"type": "longrope", **_tables(6)},
            "sliding_window": 15,
        },
    ),
    "granite": ("granite", {}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "mixtral": ("mixtral", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe-window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 9}),
}


def transformers_oracle(folder: Path) -> Callable[[Sequence[int]], Any]:
    """``ids -> logits`` of the model in ``folder``; every tensor of the file must have its place in the model."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    model.eval()

    def logits(ids: Sequence[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()

    return logits


def by_length(oracle: Callable[[Sequence[int]], Any], ids: Sequence[int], original: int) -> Any:
    """The logits after each token where the text so far is given at once: those of a model that turns all keys in
    another way beyond ``original`` tokens."""
    whole = oracle(ids)
    if len(ids) <= original:
        return whole
    return np.concatenate((oracle(ids[:original]), whole[original:]))


def cached_logits(folder: Path, ids: Sequence[int], prompt: int) -> Any:
    """The logits of transformers with its cache, after ``prompt`` tokens at once and the others one by one."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    found, cache = [], None
    with torch.no_grad():
        for part in (ids[:prompt], *([token] for token in ids[prompt:])):
            output = model(torch.tensor([list(part)]), cache=cache, use_cache=True)
            cache = output.past_key_values
            found.append(output.logits[0].numpy())
    return np.concatenate(found)
