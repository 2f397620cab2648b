"""Programs with ops that the runner has no instruction for: they run by their meaning, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cacheir.errors import UsageError
from cacheir.runtime.executor import Step
from cacheir.runtime.sampling import SamplingParams

IDS = [5, 17, 3, 96, 40, 41, 2, 2, 77]
# Nodes of the layer graph and of heads; each with the ops that an instruction would have stood for.
NODES = [
    ("h.0",),
    ("q_turned",),
    ("q_turned@1", "kv.1@0"),
    ("mixed_heads",),
    ("mixed",),
    ("down", "out"),
    ("product",),
    ("h_mid",),
    ("rows",),
    ("token", "logits"),
]


@pytest.mark.parametrize("names", NODES, ids=",".join)
def test_unfused_nodes_give_the_same(names: tuple[str, ...], make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("grouped")
    executor = tiny.open(unfuse=names)
    assert executor.capabilities().determinism == "tolerance"
    (note,) = executor.capabilities().notes
    assert "by their meaning" in note
    expected = tiny.logits([*IDS, 8])
    first, logits = step(executor, "prefill", tiny.row(0, IDS), tiny.row(1, IDS, want="logits"))
    assert executor.counters()["fallbacks"] > 0
    assert first.token == int(expected[-2].argmax())
    np.testing.assert_allclose(logits.logits[0], expected[-2], atol=1e-4 * np.abs(expected).max())
    (decoded,) = step(executor, "decode", tiny.row(1, [8], len(IDS), want="logits"))
    np.testing.assert_allclose(decoded.logits[0], expected[-1], atol=1e-4 * np.abs(expected).max())
    assert len(executor.measure(Step(mode="decode", rows=(tiny.row(1, [8], len(IDS)),)))) > 0


def test_heads_of_the_host_sample_as_the_runner_does(make_tiny: Any, step: Any) -> None:
    tiny = make_tiny("grouped")
    sampling = SamplingParams(temperature=0.9, top_p=0.95, seed=77)
    by_runner, by_host = (sampled(tiny, tiny.open(unfuse=names), step, sampling) for names in ((), ("logits", "token")))
    assert by_runner == by_host
    assert len(by_runner) == 9


def sampled(tiny: Any, executor: Any, step: Any, sampling: SamplingParams) -> list[int]:
    """The token of a prompt and those of eight steps ahead."""
    (row,) = step(executor, "prefill", tiny.row(0, IDS, sampling=sampling))
    tokens = [row.token]
    ahead = Step(mode="decode", rows=(tiny.row(0, [], len(IDS), draw=1),))
    executor.run_ahead(ahead, 8, lambda rows: tokens.append(rows[0].token))
    return tokens


def test_a_node_that_is_not_there(make_tiny: Any) -> None:
    with pytest.raises(UsageError, match="no_such_node"):
        make_tiny("grouped").open(unfuse=("no_such_node",))
