"""The pass that makes dense weights of packed ones, by the kit; what recipes make is made at load and counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from cacheir.testing import PassTests
from cacheir_cpu.residents import Residents

STORED = np.arange(12, dtype=np.float32).reshape(3, 4)
MADE = 'transpose(stored "w") {axes = [1, 0]}'


class TestUnpackWeights(PassTests):
    plugin = "cacheir_cpu.plugin"
    pass_name = "unpack-weights"
    cases = "cases/unpack-weights"


class _Store:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, recipe: str) -> Any:
        self.asked.append(recipe)
        return STORED.T.copy() if recipe == MADE else STORED


def test_what_a_recipe_makes_is_made_at_load_and_owned() -> None:
    store = _Store()
    residents = Residents(store, ("w", "kept"))  # type: ignore[arg-type]
    residents.make_all([("", (MADE,)), ("", ('stored "w"',)), ("", ("kept",)), ("", (MADE,))])
    assert store.asked == [MADE], "what lies in a file is not touched at load"
    assert residents.nbytes == STORED.nbytes
    for recipe in (MADE, 'stored "w"', "kept"):
        residents.get("", (recipe,))
    assert store.asked.count(MADE) == 1 and residents.nbytes == STORED.nbytes
