"""Logits of tiny decoders against the interpreter: windows, grouped heads, rope layouts, biases, mixed formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cacheir.testing.tiny_decoders import tiny_decoders

IDS = [5, 17, 3, 96, 40, 41, 2, 2, 77, 60, 11, 0, 9, 30, 31, 8, 19, 54, 23, 90]
NAMES = tuple(tiny_decoders())
# f32 throughout, in another order than NumPy's: far below what one wrong pairing of rope or one wrong key would cost.
EXACT = 1e-4
# Activations have 8 bits: 1 / 254 of a block's largest for each factor, over a few layers.
ROUNDED = 0.05


def all_logits(tiny: Any, executor: Any, step: Callable[..., Any], split: int) -> Any:
    """Prefill of ``split`` ids with the logits of each, then one decode step for each id that is left."""
    (first,) = step(executor, "prefill", tiny.row(1, IDS[:split], want="logits", want_at=tuple(range(split))))
    made = [first.logits]
    for position in range(split, len(IDS)):
        (row,) = step(executor, "decode", tiny.row(1, [IDS[position]], position, want="logits"))
        made.append(row.logits)
    return np.concatenate(made)


@pytest.mark.parametrize("split", [1, 7, 20])
@pytest.mark.parametrize("name", NAMES)
def test_precise_logits_are_the_interpreters(name: str, split: int, make_tiny: Any, step: Any) -> None:
    tiny = make_tiny(name)
    executor = tiny.open()
    assert executor.counters()["fallbacks"] == 0
    expected = tiny.logits(IDS)
    assert np.abs(all_logits(tiny, executor, step, split) - expected).max() <= EXACT * np.abs(expected).max()
    assert executor.counters()["fallbacks"] == 0


@pytest.mark.parametrize(("window", "sinks"), [(4, 1), (4, 3), (1, 2), (6, 17), (9, 40)])
def test_windows_with_sinks_are_the_interpreters(window: int, sinks: int, make_tiny: Any, step: Any) -> None:
    """The gap between them opens, lies in a tile of keys with both, and never opens."""
    tiny = make_tiny("grouped", kv_window=window, kv_sinks=sinks)
    executor = tiny.open()
    expected = tiny.logits(IDS)
    for split in (1, 7, 20):
        assert np.abs(all_logits(tiny, executor, step, split) - expected).max() <= EXACT * np.abs(expected).max()
    assert executor.counters()["fallbacks"] == 0
    assert executor.capabilities().notes == ()


def test_rounded_activations_stay_within_their_bound(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("quantised", precise=False)
    expected = tiny.logits(IDS)
    apart = np.abs(all_logits(tiny, tiny.open(), step, 7) - expected).max() / np.abs(expected).max()
    assert EXACT < apart <= ROUNDED  # below it nothing would have been rounded


@pytest.mark.parametrize(("kv_dtype", "bound"), [("f32", 1e-6), ("f16", 5e-3), ("bf16", 3e-2), ("int8", 6e-2)])
def test_kv_formats(kv_dtype: str, bound: float, make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("two-classes-window")
    exact = all_logits(tiny, tiny.open(), step, 7)
    made = all_logits(tiny, tiny.open(kv_dtype=kv_dtype), step, 7)
    apart = np.abs(made - exact).max() / np.abs(exact).max()
    assert apart <= bound
    assert kv_dtype == "f32" or apart > 0


@pytest.mark.parametrize("name", NAMES)
def test_unfused_graphs_give_the_same(name: str, make_tiny: Any, step: Any) -> None:
    """Without the fusing passes every op is an instruction of its own."""
    passes = ("fuse-qkv", "fuse-norm-qkv-rope", "fuse-swiglu", "fuse-norm-swiglu", "fuse-add-norm", "fuse-head-argmax")
    tiny = make_tiny(name, skip_passes=passes)
    executor = tiny.open()
    expected = tiny.logits(IDS)
    assert np.abs(all_logits(tiny, executor, step, 7) - expected).max() <= EXACT * np.abs(expected).max()
    assert executor.counters()["fallbacks"] == 0
    assert step(executor, "decode", tiny.row(1, [4], 20))[0].token == int(tiny.logits([*IDS, 4])[-1].argmax())


def test_hidden_rows_and_log_probabilities(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("grouped")
    executor = tiny.open()
    expected = tiny.logits(IDS[:6])
    hidden, logprobs, nothing = step(
        executor,
        "prefill",
        tiny.row(0, IDS[:6], want="hidden", want_at=(0, 5)),
        tiny.row(1, IDS[:6], want="logprobs", want_at=(2, 5)),
        tiny.row(2, IDS[:6], want="nothing"),
    )
    head = tiny.weights.stored("embed")
    np.testing.assert_allclose(hidden.hidden @ head.T, expected[[0, 5]], atol=1e-4 * np.abs(expected).max())
    exp = np.exp(expected[[2, 5]].astype(np.float64))
    np.testing.assert_allclose(logprobs.logprobs, np.log(exp / exp.sum(-1, keepdims=True)), atol=1e-3)
    assert nothing.token is None and nothing.error is None


def test_logits_that_are_not_finite_fail_their_row_alone(make_tiny: Any, step: Any) -> None:
    whole = make_tiny("interleaved-biased")
    table = whole.weights.stored("embed").copy()
    table[5] = np.nan
    tiny = make_tiny("interleaved-biased", changed={"embed": table})
    executor = tiny.open()
    for want in ("token", "logits"):
        good, bad, other = step(
            executor,
            "prefill",
            tiny.row(0, [1, 2, 3], want=want),
            tiny.row(1, [1, 5, 3], want=want),
            tiny.row(2, [9], want=want),
        )
        assert good.error is None and other.error is None
        assert "not finite" in str(bad.error) and bad.token is None and bad.logits is None
    assert step(executor, "prefill", tiny.row(0, [1, 2, 3]))[0].token == int(whole.logits([1, 2, 3])[-1].argmax())
