"""A vocabulary padded beyond the tokenizer's (case B21): unknown ids are never taken, and greedy answers run ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacheir import Runtime
from cacheir_importers.tiny import write_tiny

KNOWN, PADDED = 300, 600


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_greedy_tokens_are_the_largest_known_logits(own_cache: None, tmp_path: Path, backend: str) -> None:
    write_tiny(tmp_path / "model", changes={"vocab_size": PADDED})
    unknown_winners = 0
    with Runtime(tmp_path / "model", backend) as runtime:
        made = list(runtime.generate_ids([5, 6, 7], 40, ignore_eos=True))
        assert runtime.stats().run_ahead_refused == ""
        with runtime.session() as session:
            session.append([5, 6, 7])
            for token in made:
                logits = session.logits()
                unknown_winners += int(logits.argmax()) >= KNOWN
                assert token == int(logits[:KNOWN].argmax())
                session.append([token])
    assert 5 < unknown_winners < 35
