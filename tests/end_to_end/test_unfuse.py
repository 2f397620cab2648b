"""``--unfuse``: a node, in all layers or in one, runs by its meaning, and the answer stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cacheir import Runtime
from cacheir.errors import UsageError
from cacheir.runtime.executor import Row, Step


def kernels(runtime: Runtime, node: str) -> Mapping[str, int]:
    """Kernel -> how often a decode step of one row launched it for ``node``, "" for the node's meaning."""
    row = Row(slot=0, tokens=(5,), position=0, pages=((0,),))
    timings = runtime._model.executor.measure(Step(mode="decode", rows=(row,)))
    return {timing.kernel: timing.calls for timing in timings if timing.node == node}


def test_a_node_runs_by_its_meaning_where_it_is_asked_to(tiny: Path) -> None:
    with Runtime(tiny) as fused, Runtime(tiny, unfuse=["product", "%q_turned@1", "token"]) as unfused:
        layers = len(fused.artifact.card.spec.layers)
        assert kernels(fused, "product") == {"cpu.numpy.fused_swiglu": layers}
        assert kernels(unfused, "product") == {"": layers}
        assert kernels(unfused, "q_turned") == {"cpu.numpy.fused_rmsnorm_qkv_rope": layers - 1, "": 1}
        assert kernels(unfused, "token") == {"": 1}
        ids = fused.encode("The same prompt")
        assert list(unfused.generate_ids(ids, 24)) == list(fused.generate_ids(ids, 24))


@pytest.mark.parametrize("name", ["prodcut", "product@99", "product@"])
def test_a_name_that_no_node_has_is_refused(tiny: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"--unfuse names {name!r}"):
        Runtime(tiny, unfuse=[name])
