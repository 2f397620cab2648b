"""How long the parts of calls.sh take by what is known of both engines: plan_times.py prints the table of plan.md.

vLLM's times are its better mode's as it was measured on an H200, of 7B and 8B an estimate (weights over 3.5 TB/s and
1 ms); ours are those of notes.md. Seconds of a round are of one sample of each cell and engine.
"""

from __future__ import annotations

ROUNDS = 22  # two warm-ups
READY = 110.0  # unpacking and models 17 s, three engines beside each other 81 to 93
FIRST_MS = {  # by prompt
    "qwen3-0.6b": {16: 1.2, 512: 3.0, 2048: 7.0}, "qwen3-1.7b": {16: 1.9, 512: 4.2, 2048: 12.6},
    "r1-distill-1.5b": {16: 1.9, 512: 4.2, 2048: 12.0}, "qwen2.5-7b": {512: 12.0}, "llama-3.1-8b": {512: 13.0},
}  # fmt: skip
TOKEN_MS = {
    "qwen3-0.6b": 0.47, "qwen3-1.7b": 1.05, "r1-distill-1.5b": 1.0, "qwen2.5-7b": 3.55, "llama-3.1-8b": 3.75,
}  # fmt: skip
PEER_MS = {  # by prompt: outputs of 1, 8, 32 and 128
    "qwen3-0.6b": {16: (11.8, 32.2, 88.1, 318.8), 512: (11.5, 29.3, 87.3, 312.5), 2048: (27.8, 44.9, 102.2, 327.6)},
    "qwen3-1.7b": {16: (6.5, 22.0, 72.5, 315.7), 512: (10.8, 30.0, 89.1, 306.8), 2048: (25.7, 44.2, 99.4, 320.3)},
    "r1-distill-1.5b": {16: (12.6, 31.0, 92.2, 329.6), 512: (11.9, 31.3, 69.3, 310.3), 2048: (25.8, 43.8, 99.9, 338.3)},
    "qwen2.5-7b": {512: (20.0, 0.0, 0.0, 700.0)},
    "llama-3.1-8b": {512: (20.0, 0.0, 0.0, 730.0)},
}
RATES = {  # tokens a second, by batch: ours and the peer's; at 128 the peer's is a guess from its step of 32
    "qwen3-0.6b": {8: (13700, 2900), 32: (24200, 9500), 128: (31000, 19000)},
    "qwen3-1.7b": {8: (6780, 3000), 32: (15400, 12000), 128: (22000, 19000)},
    "r1-distill-1.5b": {8: (7000, 2800), 32: (14000, 11700), 128: (22000, 19000)},
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
    return sum(128 * batch / rate for rate in RATES[model][batch])


def beside(title: str, ready: float, cells: dict[str, tuple[float, ...]]) -> float:
    """Rows of a call beside vLLM; gives when the last model is done."""
    now = ready
    print(f"| {title}: engines ready | | | {now:.0f} |")
    for model, parts in cells.items():
        now += ROUNDS * sum(parts)
        print(f"| {model} | {sum(parts):.2f} | {ROUNDS * sum(parts):.0f} | {now:.0f} |")
    return now


def main() -> None:
    """The table."""
    print("| what | s a round | s for 22 rounds | over at, s |\n|---|---|---|---|")
    small = ("qwen3-0.6b", "qwen3-1.7b", "r1-distill-1.5b")
    beside("call 4", READY, {model: (singles_s(model), batch_s(model, 128)) for model in small})
    large = {model: (singles_s(model),) for model in ("qwen2.5-7b", "llama-3.1-8b")}
    several = {model: (batch_s(model, 8), batch_s(model, 32)) for model in small}
    beside("call 5", READY + 30, {**large, **several})


if __name__ == "__main__":
    main()
