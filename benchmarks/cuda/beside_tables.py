"""Writes beside.md from the raw samples of beside_*.json: python benchmarks/cuda/beside_tables.py."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

HERE = Path(__file__).parent
HEAD = """# CacheIR beside vLLM on one H200

Written by `python benchmarks/cuda/beside_tables.py` from beside_*.json (raw samples of `beside.py`): both engines in
turn, random weights of the exact shape, bfloat16, the same ids in, greedy ids out, prefix cache off. Times are wall
clock, medians. vLLM's wall clock on this machine is largely its host's: its device-busy time was 1.49 ms a token of
Qwen3-0.6B in another session, and was not measured here. Random weights leave many close calls: after the first one
that the engines decide otherwise, the rest of an answer differs, so "same tokens" says only how often they part.
"""


def main() -> None:
    """One section for each file, one row for each cell."""
    lines = [HEAD]
    for path in sorted(HERE.glob("beside_*.json")):
        report = json.loads(path.read_text())
        lines += [f"## {report['model']} beside {report['peer']} {report['peer_said'].get('vllm', '')}".rstrip(), ""]
        lines += ["| batch | prompt | output | ours, ms | peer, ms | faster by | tokens/s | samples | same tokens |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        ratios = []
        for cell in report["cells"]:
            ours, peer = (1e3 * statistics.median(cell[key]) for key in ("ours_s", "peer_s"))
            if cell["batch"] == 1:
                ratios.append(peer / ours)
            tokens = 1e3 * cell["batch"] * cell["output"] / ours
            shape = f"{cell['batch']} | {cell['prompt']} | {cell['output']}"
            samples = len(cell["ours_s"])
            lines += [
                f"| {shape} | {ours:.2f} | {peer:.2f} | {peer / ours:.2f}x | {tokens:.0f} | {samples} "
                f"| {sum(cell['equal']) / (samples * cell['batch'] * cell['output']):.0%} |"
            ]
        lines += ["", f"Geometric mean at batch 1: {statistics.geometric_mean(ratios):.2f}x.", ""]
    (HERE / "beside.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
