"""Penalties, biases and bars against plain Python, and the typical filter against its formula."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cacheir.reference.penalties import penalised
from cacheir.reference.sampling import sample_row, survivors

SIZE = 12
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=10)


@given(
    seed=st.integers(0, 10**6),
    prompt=TOKENS,
    answer=TOKENS,
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0.0, 0.5, -1.0]),
    frequency=st.sampled_from([0.0, 0.25, -0.5]),
    bias=st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([-100.0, 1.5]), max_size=3),
    allowed=st.none() | st.sets(st.integers(0, SIZE - 1), min_size=1),
    barred=st.sets(st.integers(0, SIZE - 1), max_size=3),
)
def test_every_token_is_changed_as_written(
    seed, prompt, answer, repetition, presence, frequency, bias, allowed, barred
):
    logits = np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)
    kept = logits.copy()
    out = penalised(
        logits,
        prompt=prompt,
        answer=answer,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
        bias=bias,
        allowed=allowed,
        barred=barred,
    )
    assert (logits == kept).all()
    for token in range(SIZE):
        value = float(logits[token])
        if token in prompt or token in answer:
            value = value / repetition if value > 0 else value * repetition
        if token in answer:
            value -= presence + frequency * answer.count(token)
        value += bias.get(token, 0.0)
        if token in barred or (allowed is not None and token not in allowed):
            assert out[token] == -np.inf
        else:
            assert math.isclose(out[token], value, rel_tol=1e-5, abs_tol=1e-5)


@given(seed=st.integers(0, 10**6), size=st.integers(2, 40), share=st.sampled_from([0.05, 0.4, 0.9]))
def test_typical_tokens_are_those_nearest_to_the_entropy(seed, size, share):
    z = np.random.default_rng(seed).normal(size=size).astype(np.float32) * 2
    z -= z.max()
    total = math.fsum(math.exp(v) for v in z.tolist())
    logs = [v - math.log(total) for v in z.tolist()]
    entropy = -math.fsum(math.exp(v) * v for v in logs)
    order, kept, before = sorted(range(size), key=lambda v: (abs(-logs[v] - entropy), v)), [], 0.0
    for token in order:
        if kept and before >= share:
            break
        kept.append(token)
        before += math.exp(logs[token])
    found = survivors(z, typical_p=share).tolist()
    # A sum, or two distances, that lie within rounding of each other may fall either way.
    assert found == sorted(kept) or len(set(found) ^ set(kept)) <= 2


def test_after_the_typical_filter_min_p_is_a_share_of_the_likeliest_that_is_left():
    # The likeliest token is far from typical here: it falls, and min_p must not empty the rest.
    z = np.log(np.array([0.3] + [0.7 / 70] * 70)).astype(np.float32)
    kept = survivors(z - z.max(), typical_p=0.5, min_p=0.9)
    assert len(kept) > 1 and 0 not in kept
    token = sample_row(z, temperature=1.0, typical_p=0.5, min_p=0.9, seed=3)
    assert token in kept
