"""Steps of the executor: running ahead, sampling, masks, slots, pages, what is refused, what a step costs Python."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from cacheir.errors import BackendError, RequestError, UsageError
from cacheir.reference.sampling import sample
from cacheir.runtime.executor import Step
from cacheir.runtime.sampling import SamplingParams

PROMPT = [5, 17, 3, 96, 40]
SAMPLED = SamplingParams(temperature=1.1, top_k=40, top_p=0.9, min_p=0.01, seed=12345)


def stepped(tiny: Any, executor: Any, step: Any, n: int, *samplings: SamplingParams) -> list[list[int]]:
    """The tokens of ``n`` decode steps after a prefill, by row."""
    rows = step(executor, "prefill", *(tiny.row(slot, PROMPT[slot:], sampling=s) for slot, s in enumerate(samplings)))
    made = [[row.token] for row in rows]
    for number in range(n):
        rows = step(
            executor,
            "decode",
            *(tiny.row(slot, [], 5 - slot + number, draw=number + 1) for slot in range(len(samplings))),
        )
        for tokens, row in zip(made, rows):
            tokens.append(row.token)
    return made


@pytest.mark.parametrize("name", ["two-classes-window", "quantised"])
def test_running_ahead_is_stepping(name: str, make_tiny: Any, step: Any) -> None:
    tiny = make_tiny(name, precise=False)
    samplings = (SamplingParams(), SAMPLED, SamplingParams(temperature=0.7, seed=3))
    expected = stepped(tiny, tiny.open(), step, 12, *samplings)
    executor = tiny.open(threads=2)
    first = step(executor, "prefill", *(tiny.row(slot, PROMPT[slot:], sampling=s) for slot, s in enumerate(samplings)))
    made = [[row.token] for row in first]
    rows = tuple(tiny.row(slot, [], 5 - slot, draw=1) for slot in range(3))

    def sink(outputs: Any) -> None:
        for output in outputs:
            made[output.slot].append(output.token)

    assert executor.run_ahead(Step(mode="decode", rows=rows), 12, sink) == 12
    assert made == expected
    assert len({tuple(tokens) for tokens in made}) == 3


def test_tokens_are_sampled_as_core_defines(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("grouped")
    executor = tiny.open()
    rng = np.random.default_rng(0)
    seen = set()
    for draw in range(40):
        params = SamplingParams(
            temperature=float(rng.uniform(0.2, 3)),
            top_k=int(rng.integers(0, 60)),
            top_p=float(rng.uniform(0.3, 1)),
            min_p=float(rng.uniform(0, 0.05)),
            seed=int(rng.integers(0, 2**63)),
        )
        mask = rng.integers(0, 2**32, 4, dtype=np.uint32) if draw % 2 else None
        (row,) = step(executor, "prefill", tiny.row(0, PROMPT, sampling=params, draw=draw, mask=mask))
        (want,) = step(executor, "prefill", tiny.row(0, PROMPT, want="logits"))
        (expected,) = sample(
            want.logits,
            *(np.array([v], t) for v, t in ((params.temperature, "f4"), (params.top_k, "i4"), (params.top_p, "f4"))),
            np.array([params.min_p], np.float32),
            np.array([params.seed], np.uint64),
            np.array([4], np.int32),
            np.array([draw], np.int32),
            np.full((1, 4), 0xFFFFFFFF, np.uint32) if mask is None else mask[None],
            out_types=((np.dtype(np.int32), (1,)),),
        )
        assert row.token == int(expected)
        seen.add(row.token)
    assert len(seen) > 5


def test_a_mask_holds_greedy_tokens_too(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("grouped")
    executor = tiny.open()
    best = int(tiny.logits(PROMPT)[-1].argmax())
    mask = np.full(4, 0xFFFFFFFF, np.uint32)
    mask[best // 32] ^= np.uint32(1 << best % 32)
    assert step(executor, "prefill", tiny.row(0, PROMPT))[0].token == best
    assert step(executor, "prefill", tiny.row(0, PROMPT, mask=mask))[0].token == int(
        np.argsort(-tiny.logits(PROMPT)[-1])[1]
    )


def test_pages_are_copied_and_read_back(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("two-classes-window")
    executor = tiny.open()
    (straight,) = step(executor, "prefill", tiny.row(0, [*PROMPT, 7], want="logits"))
    step(executor, "prefill", tiny.row(0, PROMPT))
    for group in range(len(tiny.program.groups)):
        executor.copy_pages(group, [(0, 6)])
        data = executor.read_pages(group, [0, 6])
        np.testing.assert_array_equal(data[0], data[1])
        executor.write_pages(group, [8], data[:1])
    for slot in (3, 4):
        (row,) = step(executor, "decode", tiny.row(slot, [7], 5, want="logits"))
        np.testing.assert_array_equal(row.logits, straight.logits)


def test_wrong_steps_are_refused_and_change_nothing(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("grouped")
    executor = tiny.open()
    (before,) = step(executor, "prefill", tiny.row(0, PROMPT, want="logits"))
    with pytest.raises(RequestError, match="97"):
        step(executor, "prefill", tiny.row(0, [97]))
    with pytest.raises(RequestError, match="position"):
        step(executor, "prefill", tiny.row(0, PROMPT, 30))
    with pytest.raises(RequestError, match="rows"):
        step(executor, "prefill", *(tiny.row(slot, [1]) for slot in range(5)))
    with pytest.raises(UsageError, match="cannot run ahead"):
        executor.run_ahead(Step(mode="decode", rows=(tiny.row(0, [1], 5, want="logits"),)), 4, print)
    with pytest.raises(UsageError, match="cannot run ahead"):
        executor.run_ahead(Step(mode="decode", rows=(tiny.row(0, [1], 5),)), 60, print)
    (after,) = step(executor, "prefill", tiny.row(0, PROMPT, want="logits"))
    np.testing.assert_array_equal(before.logits, after.logits)


def test_a_slot_without_a_token_cannot_go_on(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("grouped")
    executor = tiny.open()
    with pytest.raises(RequestError, match="no last token"):
        step(executor, "decode", tiny.row(2, [], 0))


def test_an_executor_says_what_it_misses(make_tiny: Any, step: Any) -> None:
    from cacheir.runtime.executor import ExecutorOptions
    from cacheir_native.executor import NativeExecutor

    tiny = make_tiny("grouped")
    executor = NativeExecutor(ExecutorOptions(), tiny.installation)
    with pytest.raises(BackendError, match="no program"):
        executor.memory()
    with pytest.raises(BackendError, match="no KV pages"):
        step(executor, "prefill", tiny.row(0, PROMPT))
    opened = tiny.open()
    assert opened.memory().weights > 0 and opened.memory().kv > 0
    opened.close()
    with pytest.raises(BackendError):
        step(opened, "prefill", tiny.row(0, PROMPT))


def test_kernels_of_two_kinds_are_refused(make_tiny: Any) -> None:
    tiny = make_tiny("quantised", precise=False, kernels={"linear": "cpu.native.linear.f32"})
    with pytest.raises(BackendError, match="cannot mix"):
        tiny.open()


@pytest.mark.parametrize("name", ["quantised", "two-classes-window"])  # two layers and four, of one class and of three
def test_a_step_costs_few_python_calls(name: str, make_tiny: Any) -> None:
    tiny = make_tiny(name, precise=False)
    executor = tiny.open()
    step = Step(mode="decode", rows=(tiny.row(0, [3]),))
    executor.wait(executor.submit(step))
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # a collection calls whatever watches it, Hypothesis for one
    sys.setprofile(count)
    try:
        executor.wait(executor.submit(step))
    finally:
        sys.setprofile(None)
        gc.enable()
    assert 0 < calls <= 20


def test_running_ahead_leaves_python_to_others(make_tiny: Any, turns_of_another: Any) -> None:
    tiny = make_tiny("quantised", precise=False)
    executor = tiny.open()
    ahead = Step(mode="decode", rows=(tiny.row(0, [3]),))
    assert turns_of_another(lambda: executor.run_ahead(ahead, 16, lambda rows: None), 500) > 0
