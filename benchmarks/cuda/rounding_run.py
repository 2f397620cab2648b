"""How far rounding alone takes models of random weights: python rounding_run.py OUT.json MODEL... (no GPU)

Logits of 81 random tokens by transformers: in float32, in float32 with what goes into each matrix rounded to bfloat16,
and in bfloat16 throughout. Errors and margins are parts of the largest logit of their position, as in
``batch_run.logits_parity``. A model takes some 70 s and 12 GB.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_models import write_model
from transformers import AutoModelForCausalLM

TOKENS, SPREAD = 81, 2.0


def rounded_inputs(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A hook before a matrix: its input as bfloat16 would have it, in float32."""
    return (arguments[0].to(torch.bfloat16).float(),)


def errors(name: str) -> dict[str, Any]:
    """Medians and largest errors of the model ``name``, and quantiles of its margins."""
    ids = torch.tensor(np.random.default_rng(5).integers(0, 150000, TOKENS))[None]
    with tempfile.TemporaryDirectory() as place:
        write_model(Path(place) / name, name, device="cpu", spread=SPREAD)
        model = AutoModelForCausalLM.from_pretrained(
            Path(place) / name, dtype=torch.float32, attn_implementation="eager"
        )
    exact = model(ids).logits[0].numpy()
    matrices = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(rounded_inputs) for module in matrices]
    found = {"inputs rounded": model(ids).logits[0].numpy()}
    for hook in hooks:
        hook.remove()
    found["bfloat16"] = model.to(torch.bfloat16)(ids).logits[0].float().numpy()
    largest = np.abs(exact).max(axis=1)
    top = np.sort(exact, axis=1)
    made: dict[str, Any] = {}
    for kind, logits in found.items():
        error = np.abs(logits - exact).max(axis=1) / largest
        made[kind] = {"median": float(np.median(error)), "largest": float(error.max())}
    quantiles = np.quantile((top[:, -1] - top[:, -2]) / largest, [0.05, 0.25, 0.5])
    made["margins, quantiles 0.05, 0.25, 0.5"] = [float(one) for one in quantiles]
    return made


def main() -> None:
    """Write each model's row as soon as it is there."""
    made: dict[str, Any] = {"torch": torch.__version__, "tokens": TOKENS, "spread": SPREAD}
    for name in sys.argv[2:]:
        made[name] = errors(name)
        Path(sys.argv[1]).write_text(json.dumps(made, indent=1) + "\n")
        print(name, made[name], flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
