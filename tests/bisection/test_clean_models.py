"""A model without a fault gets no name: random tiny models of all families."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cacheir.bisection import bisect_model
from cacheir.plugins.installation import Installation
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TINY_FAMILIES, TinyShape

SHAPES = (
    TinyShape(),
    TinyShape(hidden=96, layers=3, heads=6, kv_heads=1, feed_forward=80),
    TinyShape(hidden=32, layers=4, heads=2, kv_heads=2, head_dim=32, feed_forward=48, tied=True),
    TinyShape(layers=5, kv_heads=4),
)
# (family, seed, shape): every family in turn, fifty in all.
MODELS = [
    (family, seed, SHAPES[seed % len(SHAPES)])
    for seed, family in zip(range(50), itertools.cycle(sorted(TINY_FAMILIES)))
]


@pytest.mark.parametrize(("family", "seed", "shape"), MODELS[:3])
def test_a_clean_model_gets_no_name(
    family: str, seed: int, shape: TinyShape, tmp_path: Path, installation: Installation
) -> None:
    write_tiny(tmp_path / "model", family=family, seed=seed, shape=shape)
    found = bisect_model(tmp_path / "model", backend="cpu", installation=installation)
    assert found.finding is None, found.finding
    assert found.runs == 1
    assert found.distance < found.tolerance / 4


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed", "shape"), MODELS)
def test_fifty_clean_models_get_no_name(
    family: str, seed: int, shape: TinyShape, tmp_path: Path, installation: Installation
) -> None:
    test_a_clean_model_gets_no_name(family, seed, shape, tmp_path, installation)
