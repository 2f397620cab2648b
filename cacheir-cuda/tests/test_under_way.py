"""Steps on the device's queue: their tokens are those of their own step, whatever comes after it."""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels are torch's")

from cacheir_cuda.under_way import UnderWay, coming_to_host  # noqa: E402

DEVICE = torch.device(os.environ.get("CACHEIR_TEST_DEVICE", "cpu"))


def test_a_copy_is_of_the_moment_it_was_asked_for() -> None:
    tokens = torch.arange(5, dtype=torch.int32, device=DEVICE)
    coming = [coming_to_host(tokens)]
    for number in range(3):
        tokens.fill_(number)
        coming.append(coming_to_host(tokens))
    tokens.fill_(-1)
    found = [wait() for wait in coming]
    np.testing.assert_array_equal(found[0], np.arange(5))
    for number, array in enumerate(found[1:]):
        assert array.dtype == np.int32 and set(array.tolist()) == {number}


def test_a_step_under_way_says_so_by_its_type() -> None:
    assert UnderWay(lambda: ()).finish() == ()
