"""What bisect is asked for is checked before any model runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacheir.artifact.card import CompileOptions
from cacheir.bisection import bisect_model
from cacheir.cli.bisect import token_ids
from cacheir.errors import UsageError
from cacheir.plugins.installation import Installation


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (CompileOptions(passes=("no-such-pass",)), "no pass is called 'no-such-pass'"),
        (CompileOptions(skip_passes=("no-such-pass",)), "no pass is called 'no-such-pass'"),
        (CompileOptions(kernels={"linear": "no.such"}), "there is no such kernel for linear"),
        (CompileOptions(kernels={"no_such_op": "reference"}), "there is no op 'no_such_op'"),
    ],
)
def test_a_name_that_is_not_there_is_refused_before_the_reference_runs(
    options: CompileOptions, said: str, tiny: Path, installation: Installation
) -> None:
    steps: list[str] = []
    with pytest.raises(UsageError, match=said):
        bisect_model(tiny, backend="cpu", options=options, installation=installation, progress=steps.append)
    assert steps == []


@pytest.mark.parametrize("text", ["3,,4", "3,", ",3", " ", "3 4", "x"])
def test_ids_that_are_missing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read --tokens"):
        token_ids(text)


def test_ids_are_read() -> None:
    assert token_ids("") == []
    assert token_ids("3, 14,15") == [3, 14, 15]
