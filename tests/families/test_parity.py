"""Every family against transformers: prefill, paged decode, greedy tokens, long positions, windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from family_models import VARIANTS, transformers_oracle

from cacheir.testing import FamilyTests
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


for _name in VARIANTS:
    _title = "Test" + "".join(part.capitalize() for part in _name.replace("_", "-").split("-"))
    globals()[_title] = type(_title, (TransformersTests,), {"variant": _name, "__test__": True, "__doc__": _name})
