"""Every family against transformers: prefill, paged decode, greedy tokens, long positions, windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from family_models import ROTATION_ENDS, VARIANTS, by_length, cached_logits, transformers_oracle

from cacheir.testing import FamilyTests
from cacheir.testing.family_tests import FamilyCase
from cacheir_importers.tiny import write_tiny


class TransformersTests(FamilyTests):
    """``variant`` names the model."""

    __test__ = False
    plugins = ("cacheir_cpu.plugin", "cacheir_importers.plugin")
    variant = ""

    @classmethod
    def write_model(cls, folder: Path) -> None:
        family, changes = VARIANTS[cls.variant]
        write_tiny(folder, family=family, changes=changes)

    @classmethod
    def make_oracle(cls, folder: Path) -> Any:
        return transformers_oracle(folder)

    def expected(self, case: FamilyCase, ids: Sequence[int], prompt: int) -> Any:
        """Where the rotation follows the length of the sequence: longrope computes a text anew when it grows too long
        for the short table (as ``generate`` of Phi-3 does), dynamic NTK goes on with the keys that it has."""
        if self.variant.endswith("longrope"):
            return by_length(case.oracle, ids, ROTATION_ENDS)
        if self.variant.endswith("dynamic"):
            return cached_logits(case.folder, ids, prompt)
        return super().expected(case, ids, prompt)


for _name in VARIANTS:
    _title = "Test" + "".join(part.capitalize() for part in _name.replace("_", "-").split("-"))
    globals()[_title] = type(_title, (TransformersTests,), {"variant": _name, "__test__": True, "__doc__": _name})
