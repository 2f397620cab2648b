"""An executor refuses what its program's buffers were not planned for, and promises only the bits that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.errors import RequestError
from cacheir.runtime.executor import Row, Step


@pytest.fixture(scope="module")
def runtime(tiny: Path) -> Iterator[Runtime]:
    with Runtime(tiny, "cpu", max_seq=64, compile_options=CompileOptions(max_rows=2, max_tokens=8)) as runtime:
        yield runtime


def rows(count: int, tokens: int, position: int = 0) -> tuple[Row, ...]:
    return tuple(
        Row(slot=slot, tokens=(5,) * tokens, position=position, pages=((4 * slot, 4 * slot + 1, 4 * slot + 2),))
        for slot in range(count)
    )


@pytest.mark.parametrize(
    ("mode", "step", "words"),
    [
        ("prefill", rows(3, 1), "a step of 3 rows, and this program takes 2"),
        ("prefill", rows(1, 9), "a prefill step of 9 tokens, and this program takes 8"),
        ("prefill", rows(2, 5), "a prefill step of 10 tokens, and this program takes 8"),
        ("decode", rows(3, 1), "a step of 3 rows, and this program takes 2"),
        ("decode", rows(1, 3), "a decode step of 3 tokens, and this program takes 2"),
        ("decode", rows(1, 1, 64), "slot 0 would reach position 64, and this program has 64 positions"),
    ],
)
def test_a_step_above_the_limits_is_refused(runtime: Runtime, mode: str, step: tuple[Row, ...], words: str) -> None:
    executor = runtime._model.executor
    with pytest.raises(RequestError, match=words):
        executor.submit(Step(mode=mode, rows=step))
    assert executor.wait(executor.submit(Step(mode="prefill", rows=rows(2, 4)))).rows[0].token is not None


@pytest.mark.parametrize(
    ("kernels", "promise"), [({}, "bit"), ({"rms_norm": "reference"}, "bit"), ({"linear": "reference"}, "tolerance")]
)
def test_batch_invariance_is_promised_where_it_holds(tiny: Path, kernels: dict[str, str], promise: str) -> None:
    with Runtime(tiny, "cpu", batch_invariant=True, compile_options=CompileOptions(kernels=kernels)) as runtime:
        assert runtime._model.executor.capabilities().determinism == promise
