"""How long the call beside vLLM takes by what is known of both engines: plan_times.py prints the table of plan.md.

vLLM's times are its better mode's as it was measured on an H200, of 7B and 8B an estimate (weights over 3.5 TB/s and
1 ms); ours are those of batch_run_*.json and notes.md. Seconds of a round are of one sample of each cell and engine.
"""

from __future__ import annotations

ROUNDS = 22  # two warm-ups
READY = 125.0  # unpacking and models 20 s, three engines beside each other 81 to 96
BUSY = {"small": 16.0, "large": 3.0}  # seconds of a model's runs under the profiler: 50,000 kernels take 1.5
FIRST_MS = {  # by prompt
    "qwen3-0.6b": {16: 1.25, 512: 2.4, 2048: 6.3}, "qwen3-1.7b": {16: 1.5, 512: 3.6, 2048: 12.6},
    "r1-distill-1.5b": {16: 1.7, 512: 3.6, 2048: 12.1}, "qwen2.5-7b": {512: 12.0}, "llama-3.1-8b": {512: 13.0},
}  # fmt: skip
TOKEN_MS = {
    "qwen3-0.6b": 0.46, "qwen3-1.7b": 1.02, "r1-distill-1.5b": 0.97, "qwen2.5-7b": 3.5, "llama-3.1-8b": 3.7,
}  # fmt: skip
PEER_MS = {  # by prompt: outputs of 1, 8, 32 and 128
    "qwen3-0.6b": {16: (11.8, 32.2, 88.1, 318.8), 512: (11.5, 29.3, 87.3, 312.5), 2048: (27.8, 44.9, 102.2, 327.6)},
    "qwen3-1.7b": {16: (6.5, 22.0, 72.5, 315.7), 512: (10.8, 30.0, 89.1, 306.8), 2048: (25.7, 44.2, 99.4, 320.3)},
    "r1-distill-1.5b": {16: (12.6, 31.0, 92.2, 329.6), 512: (11.9, 31.3, 69.3, 310.3), 2048: (25.8, 43.8, 99.9, 338.3)},
    "qwen2.5-7b": {512: (20.0, 0.0, 0.0, 700.0)},
    "llama-3.1-8b": {512: (20.0, 0.0, 0.0, 730.0)},
}
RATES = {  # tokens a second, by batch: ours and the peer's; at 128 the peer's is a guess from its step of 32
    "qwen3-0.6b": {8: (14900, 2900), 32: (27400, 9500), 128: (31000, 19000)},
    "qwen3-1.7b": {8: (7100, 3000), 32: (16300, 12000), 128: (22000, 19000)},
    "r1-distill-1.5b": {8: (6950, 2800), 32: (14200, 11700), 128: (22000, 19000)},
}
OUTPUTS = (1, 8, 32, 128)


def singles_s(model: str) -> float:
    """One round of one-prompt cells, both engines."""
    total = 0.0
    for prompt, theirs in PEER_MS[model].items():
        for output, their in zip(OUTPUTS, theirs):
            total += their + FIRST_MS[model][prompt] + (output - 1) * TOKEN_MS[model] if their else 0.0
    return total / 1e3


def batch_s(model: str, batch: int) -> float:
    """One round of a batch, 128 in and 128 out, both engines."""
    return sum(128 * batch / rate for rate in RATES.get(model, {}).get(batch, ()))


def main() -> None:
    """The table: stages one after the other, each model in its turn."""
    now = READY
    print("| stage | model | s a round | s for 22 rounds | over at, s |\n|---|---|---|---|---|")
    print(f"| engines ready | | | | {now:.0f} |")
    for stage, batches in (("one prompt", ()), ("batch 128", (128,)), ("batches 8 and 32", (8, 32))):
        for model in PEER_MS:
            each = sum(batch_s(model, batch) for batch in batches) if batches else singles_s(model)
            now += ROUNDS * each
            if each:
                print(f"| {stage} | {model} | {each:.2f} | {ROUNDS * each:.0f} | {now:.0f} |")
    now += sum(BUSY["small" if model in RATES else "large"] for model in PEER_MS)
    print(f"| device-busy times | all | | | {now:.0f} |")
    print(f"| partings judged, all beside each other | three | | | {now + 20:.0f} |")


if __name__ == "__main__":
    main()
