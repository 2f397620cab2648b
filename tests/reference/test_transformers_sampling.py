"""Penalties and the typical filter beside those of transformers, on fresh logits."""

from __future__ import annotations

import numpy as np
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor, TypicalLogitsWarper

from cacheir.reference.penalties import penalised
from cacheir.reference.sampling import survivors


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    random = np.random.default_rng()
    for _ in range(20):
        logits = random.normal(size=50).astype(np.float32) * 3
        prompt, answer = random.integers(0, 50, 9).tolist(), random.integers(0, 50, 5).tolist()
        penalty = float(random.uniform(0.5, 2.0))
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([prompt + answer]), torch.from_numpy(logits.copy())[None]
        )[0].numpy()
        np.testing.assert_allclose(
            penalised(logits, prompt=prompt, answer=answer, repetition=penalty), theirs, rtol=1e-6
        )


def test_the_typical_filter_is_that_of_transformers() -> None:
    random = np.random.default_rng()
    for _ in range(50):
        logits = random.normal(size=80).astype(np.float32) * 2
        share = float(random.uniform(0.05, 0.95))
        theirs = TypicalLogitsWarper(mass=share)(torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(logits)[None])
        kept = np.flatnonzero(np.isfinite(theirs[0].numpy())).tolist()
        found = survivors(logits - logits.max(), typical_p=share).tolist()
        # Sums in float32 there and float64 here may differ about the last token, or the order of two that are level
        # about which of them is the last: whatever differs stands next to the cut.
        wide = logits.astype(np.float64)
        logs = wide - np.log(np.exp(wide).sum())
        order = np.argsort(np.abs(logs - (np.exp(logs) * logs).sum()))
        assert set(found) ^ set(kept) <= set(order[len(found) - 1 : len(found) + 1].tolist())
