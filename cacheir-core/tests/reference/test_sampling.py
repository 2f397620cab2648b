"""The one definition of sampling: filters against plain Python, draws against chi-square, and what never matters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cacheir.reference.sampling import NO_TOKEN, allowed_tokens, gumbel, sample, sample_row, survivors

F32 = NDArray[np.float32]


def normal(seed: int, *shape: int) -> F32:
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(np.float32)


def filtered(logits: F32, temperature: float, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The survivors, step by step in Python's own floats."""
    z = ((logits - logits.max()) / np.float32(temperature)).tolist()
    order = sorted((v for v in range(len(z)) if z[v] > -math.inf), key=lambda v: (-z[v], v))
    if top_k:
        order = order[:top_k]
    total, before, kept = math.fsum(math.exp(z[v]) for v in order), 0.0, []
    for v in order:
        if top_p < 1 and kept and before >= top_p * total:
            break
        kept.append(v)
        before += math.exp(z[v])
    return sorted(v for v in kept if math.exp(z[v]) >= min_p)


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 60),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.01, 0.37, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    ties=st.booleans(),
)
def test_survivors(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float, ties: bool
) -> None:
    logits = normal(seed, size)
    if ties:
        logits = np.round(logits)
    z = (logits - logits.max()) / np.float32(temperature)
    found = survivors(z, top_k=top_k, top_p=top_p, min_p=min_p).tolist()
    expected = filtered(logits, temperature, top_k, top_p, min_p)
    # A sum that lies within rounding of the border may fall either way.
    assert found == expected or len(set(found) ^ set(expected)) <= 1


def test_top_k_keeps_the_lowest_ids_of_equals() -> None:
    z = np.array([-1, 0, -1, 0, -1, -2], np.float32)
    assert survivors(z, top_k=3, top_p=1.0, min_p=0.0).tolist() == [0, 1, 3]
    assert survivors(z, top_k=1, top_p=1.0, min_p=0.0).tolist() == [1]
    assert survivors(z, top_k=6, top_p=1.0, min_p=0.0).tolist() == [0, 1, 2, 3, 4, 5]


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    z = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32)) - np.log(np.float32(0.5))
    kept = {0.0: 1, 0.3: 1, 0.5: 1, 0.6: 2, 0.75: 2, 0.8: 3, 0.95: 4, 1.0: 4}
    for top_p, count in kept.items():
        assert survivors(z, top_k=0, top_p=top_p, min_p=0.0).tolist() == list(range(count))


def test_top_p_is_of_what_top_k_left() -> None:
    z = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32)) - np.log(np.float32(0.4))
    # Of the two that are left, the first has 4/7 = 0.571 of the weight.
    assert survivors(z, top_k=2, top_p=0.56, min_p=0.0).tolist() == [0]
    assert survivors(z, top_k=2, top_p=0.58, min_p=0.0).tolist() == [0, 1]
    assert survivors(z, top_k=0, top_p=0.39, min_p=0.0).tolist() == [0]


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """How many deviations the statistic is above its mean; about normal for enough cells."""
    cells = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - cells) / math.sqrt(2 * cells)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    logits = normal(3, 30)
    draws = 4000
    tokens = [sample_row(logits, temperature=temperature, seed=11, position=5, draw=draw) for draw in range(draws)]
    weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    probable = weights / weights.sum() * draws
    common = probable >= 5
    counts = np.bincount(tokens, minlength=30)
    assert chi_square(counts[common], probable[common]) < 4
    assert abs(counts[~common].sum() - probable[~common].sum()) < 4 * math.sqrt(probable[~common].sum() + 1)


@pytest.mark.parametrize("filters", [{"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 6, "top_p": 0.8}])
def test_filtered_draws_follow_the_renormalised_distribution(filters: dict[str, Any]) -> None:
    logits = normal(8, 20)
    draws = 3000
    tokens = [sample_row(logits, temperature=1.0, seed=77, draw=draw, **filters) for draw in range(draws)]
    kept = filtered(logits, 1.0, filters.get("top_k", 0), filters.get("top_p", 1.0), filters.get("min_p", 0.0))
    assert set(tokens) <= set(kept) and len(kept) > 1
    weights = np.exp(logits[kept].astype(np.float64))
    counts = np.bincount(tokens, minlength=20)[kept]
    assert chi_square(counts, weights / weights.sum() * draws) < 4


def test_seeds_positions_and_draws_are_independent_streams() -> None:
    logits = np.zeros(1000, np.float32)
    base = [sample_row(logits, temperature=1.0, seed=1, position=2, draw=3)]
    for name in ("seed", "position", "draw"):
        tokens = [
            sample_row(logits, temperature=1.0, **{"seed": 1, "position": 2, "draw": 3, name: value})
            for value in range(200)
        ]
        assert len(set(tokens)) > 150  # 181 are expected of 1000 equal tokens
        assert base[0] in tokens
    assert sample_row(logits, temperature=1.0, seed=2**64 - 1) != sample_row(logits, temperature=1.0, seed=2**32 - 1)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**63), rows=st.integers(1, 5), masked=st.booleans())
def test_a_row_is_the_same_whatever_runs_beside_it(seed: int, rows: int, masked: bool) -> None:
    rng = np.random.default_rng(seed)
    parameters: dict[str, Any] = {
        "logits": rng.standard_normal((rows, 70)).astype(np.float32),
        "temperature": rng.choice([0.0, 1.0], rows).astype(np.float32),
        "top_k": rng.integers(0, 9, rows).astype(np.int32),
        "top_p": rng.choice([0.7, 1.0], rows).astype(np.float32),
        "min_p": rng.choice([0.0, 0.2], rows).astype(np.float32),
        "seed": rng.integers(0, 2**63, rows).astype(np.uint64),
        "position": rng.integers(0, 99, rows).astype(np.int32),
        "draw": rng.integers(0, 99, rows).astype(np.int32),
    }
    if masked:
        parameters["mask"] = rng.integers(1, 2**32, (rows, 3), dtype=np.uint32)
    together = sample(**parameters)
    assert together.dtype == np.int32
    for row in range(rows):
        alone = sample(**{name: value[row : row + 1] for name, value in parameters.items()})
        assert alone[0] == together[row]


def test_filters_that_leave_the_winner_do_not_change_it() -> None:
    """A token's noise depends on its id alone, so taking others away never moves the choice from a survivor."""
    for seed in range(60):
        logits = normal(seed, 50)
        free = sample_row(logits, temperature=1.0, seed=seed)
        for filters in ({"top_k": 10}, {"top_p": 0.8}, {"min_p": 0.05}):
            kept = filtered(logits, 1.0, filters.get("top_k", 0), filters.get("top_p", 1.0), filters.get("min_p", 0.0))
            found = sample_row(logits, temperature=1.0, seed=seed, **filters)
            assert found in kept
            if free in kept:
                assert found == free


def test_temperature_zero_is_greedy_with_the_lowest_id() -> None:
    logits = np.array([1, 5, 5, 2], np.float32)
    assert all(sample_row(logits, temperature=0.0, seed=seed, top_p=0.5) == 1 for seed in range(5))
    assert sample_row(logits, temperature=1e-4, seed=9) in (1, 2)
    assert {sample_row(logits, temperature=1e-4, seed=seed) for seed in range(40)} == {1, 2}


def test_one_survivor_always_wins() -> None:
    logits = normal(1, 40)
    best = int(logits.argmax())
    for filters in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert {sample_row(logits, temperature=5.0, seed=seed, **filters) for seed in range(50)} == {best}


def test_masked_tokens_are_never_chosen() -> None:
    logits = normal(2, 70)
    allowed = np.zeros(70, bool)
    allowed[[3, 64, 69]] = True
    mask = np.packbits(allowed, bitorder="little")
    packed = np.zeros(12, np.uint8)
    packed[: len(mask)] = mask
    words = packed.view("<u4").astype(np.uint32)
    np.testing.assert_array_equal(allowed_tokens(words, 70), allowed)
    for temperature in (0.0, 1.0, 3.0):
        tokens = {sample_row(logits, temperature=temperature, seed=seed, allowed=allowed) for seed in range(80)}
        assert tokens <= {3, 64, 69} and (temperature < 3 or len(tokens) == 3)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_row_that_cannot_be_sampled_says_so_and_others_go_on(broken: float) -> None:
    logits = np.zeros((3, 5), np.float32)
    logits[1, 2] = broken
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.int32)
    for temperature in (ones, 0 * ones):
        found = sample(logits, temperature, zeros, ones, 0 * ones, np.zeros(3, np.uint64), zeros, zeros)
        assert found[1] == NO_TOKEN and (found[[0, 2]] >= 0).all()
    assert sample_row(np.full(4, -np.inf, np.float32), temperature=1.0) == NO_TOKEN
    assert sample_row(np.zeros(4, np.float32), temperature=1.0, allowed=np.zeros(4, bool)) == NO_TOKEN


def test_a_logit_of_minus_infinity_is_never_chosen() -> None:
    logits = np.array([-np.inf, 0, -np.inf, 0], np.float32)
    assert {sample_row(logits, temperature=100.0, seed=seed) for seed in range(50)} == {1, 3}


def test_noise_is_finite_for_every_word_and_has_gumbels_moments() -> None:
    ends = gumbel(np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32))
    assert np.isfinite(ends).all() and (np.diff(ends) <= 0).all() and ends[0] > 22 and ends[-1] < -2.7
    noise = gumbel(np.random.default_rng(4).integers(0, 2**32, 200_000, dtype=np.uint32)).astype(np.float64)
    assert noise.mean() == pytest.approx(0.577216, abs=0.012)
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.02)
