"""How long the call beside vLLM takes: plan_times.py [MODEL...] prints the table of plan.md, for these or for all.

Seconds are those of the call of 2026-11-30 on an H200: 22 rounds of a stage by its turn files, busy times of one run
each. Engines that start together are ready after READY; a few of them sooner.
"""

from __future__ import annotations

import sys

READY = {3: 100, 5: 132}  # by how many start together: unpacking, imports, compiling, graphs
STAGES: dict[str, dict[str, int]] = {
    "one prompt": {"qwen3-0.6b": 32, "qwen3-1.7b": 42, "r1-distill-1.5b": 39, "qwen2.5-7b": 24, "llama-3.1-8b": 25},
    "batch 128": {"qwen3-0.6b": 21, "qwen3-1.7b": 28, "r1-distill-1.5b": 24},
    "batches 8 and 32": {"qwen3-0.6b": 17, "qwen3-1.7b": 23, "r1-distill-1.5b": 20},
    "busy, one prompt": {"qwen3-0.6b": 11, "qwen3-1.7b": 11, "r1-distill-1.5b": 10, "qwen2.5-7b": 8, "llama-3.1-8b": 5},
    "busy, batches": {"qwen3-0.6b": 6, "qwen3-1.7b": 7, "r1-distill-1.5b": 3},
}


def main() -> None:
    """The table: stages one after the other, each model in its turn."""
    models = sys.argv[1:] or list(STAGES["one prompt"])
    now = READY[3 if len(models) <= 3 else 5]
    print("| stage | model | s | over at, s |\n|---|---|---|---|")
    print(f"| engines ready | | | {now} |")
    for stage, taken in STAGES.items():
        for model in models:
            if model in taken:
                now += taken[model]
                print(f"| {stage} | {model} | {taken[model]} | {now} |")


if __name__ == "__main__":
    main()
