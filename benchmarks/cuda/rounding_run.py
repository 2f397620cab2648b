"""How far rounding alone takes the models of parity: python rounding_run.py OUT.json MODEL... (no GPU)

Of ``clear_models``, in eager torch: float32 beside what goes into each matrix rounded to bfloat16, bfloat16 throughout,
and, to show what the tokens depend on, attention or a layer left out. Errors are parts of the largest logit of their
position, and positions are left out, as in ``batch_run.logits_parity``. A model takes minutes and up to 8 GB.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from batch_run import ids
from clear_models import CALM, EPS, SHARE, clear_model, compared
from eager_prompt import EagerPrompt, rounded
from random_models import SHAPES
from torch import Tensor

TOKENS = 400
POSITIONS = (15, 16, 80, 200, 300, *range(TOKENS - 41, TOKENS))


def without(tensors: dict[str, Tensor], ends: tuple[str, ...]) -> dict[str, Tensor]:
    """The model in which matrices whose names end so add nothing."""
    return {key: torch.zeros_like(value) if key.endswith(ends) else value for key, value in tensors.items()}


def errors(name: str) -> dict[str, Any]:
    """Each way's errors and tokens beside float32, quantiles of the margins, and how alike state and embedding are."""
    prompt, shape = ids(TOKENS, 5), SHAPES[name][1]
    tensors = clear_model(name, "cpu", prompt, POSITIONS)
    exact = EagerPrompt(tensors, shape, EPS).logits(prompt, POSITIONS)
    ways = {
        "inputs rounded": EagerPrompt(tensors, shape, EPS, enter=rounded),
        "bfloat16": EagerPrompt(tensors, shape, EPS, torch.bfloat16),
        "without attention": EagerPrompt(without(tensors, ("o_proj.weight",)), shape, EPS),
    }
    for layer in (0, shape.layers // 2, shape.layers - 1):
        ends = tuple(f".{layer}.{part}.weight" for part in ("self_attn.o_proj", "mlp.down_proj"))
        ways[f"without layer {layer}"] = EagerPrompt(without(tensors, ends), shape, EPS)
    made: dict[str, Any] = {}
    for way, eager in ways.items():
        made[way] = compared(eager.logits(prompt, POSITIONS), exact)
        print(name, way, made[way], flush=True)
    top = exact.topk(2, 1)
    margins = (top.values[:, 0] - top.values[:, 1]) / exact.abs().amax(1)
    made["margins, quantiles 0.05, 0.25, 0.5"] = margins.quantile(torch.tensor([0.05, 0.25, 0.5])).tolist()
    made["distinct tokens"] = len(set(top.indices[:, 0].tolist()))
    return made


def main() -> None:
    """Write each model's row as soon as it is there."""
    made: dict[str, Any] = {"torch": torch.__version__, "tokens": TOKENS, "positions": len(POSITIONS), "share": SHARE}
    for name in sys.argv[2:]:
        made[name] = {"scales": vars(CALM[name]), **errors(name)}
        Path(sys.argv[1]).write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
