"""The tiny model of each family answers with tokens that lead clearly, and loops in no rut (T0)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cacheir import Runtime
from cacheir.testing import FamilyTests
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TINY_FAMILIES
from cacheir_importers.tiny_tokenizer import EOS_ID


@pytest.mark.parametrize("family", [family for family in TINY_FAMILIES if family != "llama"])
def test_the_best_token_leads_clearly(tmp_path: Path, family: str) -> None:
    write_tiny(tmp_path / "model", family=family)
    leads, tokens = [], []
    with Runtime(tmp_path / "model", backend="cpu") as runtime, runtime.session() as session:
        session.append(FamilyTests.prompt)
        for _ in range(64):
            logits = session.logits()
            second, first = np.sort(logits)[-2:]
            leads.append(first - second)
            tokens.append(int(logits.argmax()))
            session.append(tokens[-1:])
    assert min(leads) > 0.1
    assert len(set(tokens)) > 20 and EOS_ID not in tokens
