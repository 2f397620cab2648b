"""Sampling parameters: what is refused, by name; a seed's tokens depend on nothing but the seed and the text."""

from __future__ import annotations

import math
import pickle
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import RequestError
from cacheir.runtime.request import RequestLimits, admit
from cacheir.runtime.sampling import MAX_TOP_K, MIN_TEMPERATURE, SamplingParams

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", value) for value in (NAN, INF, -INF, -1, -1e-9, 101, 10**400, 1e-9, "0.7", None, True)],
        *[("top_p", value) for value in (0, 7, NAN, -0.1, INF, "1", None)],
        *[("min_p", value) for value in (-0.1, 2, NAN, None)],
        *[("top_k", value) for value in (-5, 1.5, "3", True, None)],
        *[("seed", value) for value in (-1, 2**64, "x", 1.0, True)],
        *[("max_tokens", value) for value in (0, -1, 0.5, "5", True)],
        *[("stop", value) for value in ([""], ["a", ""], 5, [5], [None], ["x"] * 17, ["y" * 1001], {"a": 1})],
        *[("stop_ids", value) for value in ([-1], ["a"], 5, [True], [1.0])],
        *[("typical_p", value) for value in (0, 1.1, NAN, None, "1")],
        *[("repetition_penalty", value) for value in (0, -1, 1e-300, NAN, INF, "1", None)],
        *[("presence_penalty", value) for value in (-2.1, 10, NAN, "0")],
        *[("frequency_penalty", value) for value in (-10, 2.1, NAN, None)],
        *[("logit_bias", value) for value in ({-1: 1.0}, {"5": 1.0}, {5: 101}, {5: NAN}, [5], "x", [(1, 2, 3)])],
        *[("allowed_ids", value) for value in ([], [-1], "ab", [1.5])],
        *[("min_tokens", value) for value in (-1, 1.5, None)],
        *[("logprobs", value) for value in (-1, 101, True, 1.5)],
        *[("ignore_eos", value) for value in (1, "yes", None)],
    ],
)
def test_case_d12_bad_values_are_named(field, value):
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", MIN_TEMPERATURE),
        ("temperature", 100),
        ("top_p", 1),
        ("top_p", 1e-9),
        ("min_p", 0),
        ("min_p", 1),
        ("top_k", 0),
        ("top_k", 10**9),
        ("top_k", MAX_TOP_K),
        ("seed", 0),
        ("seed", 2**64 - 1),
        ("max_tokens", None),
        ("max_tokens", 10**12),
    ],
)
def test_values_at_the_border_are_taken(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_one_string_is_one_stop_and_repeats_are_dropped():
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["b", "a", "b"]).stop == ("b", "a")
    assert SamplingParams(stop_ids=[7, 3, 7]).stop_ids == (3, 7)


def test_admission_leaves_nothing_open():
    limits = RequestLimits(max_seq=64, vocab_size=300, eos_ids=(5, 6))
    admitted = admit(10, SamplingParams(stop_ids=(9,)), limits)
    assert admitted.max_tokens == 54 and admitted.stop_ids == (5, 6, 9) and admitted.seed is not None
    assert admit(10, SamplingParams(max_tokens=10**12), limits).max_tokens == 54
    assert admit(10, SamplingParams(max_tokens=3, ignore_eos=True, stop_ids=(9,)), limits).stop_ids == (9,)
    assert len({admit(10, SamplingParams(), limits).seed for _ in range(20)}) == 20
    assert admit(10, admitted, limits) == admitted


@given(seed=st.integers(0, 2**64 - 1), neighbour=st.integers(0, 2**64 - 1), chunk=st.integers(1, 7))
def test_case_d15_a_seed_does_not_depend_on_neighbours(fake, seed, neighbour, chunk):
    """Alone, beside another request, in other chunks, one step at a time, sampled on the host: the same tokens."""
    prompt = [5, 6, 7, 8, 9]
    hot = {"temperature": 1.3, "top_k": 50, "top_p": 0.9, "min_p": 0.01}
    runs = []
    for options in ({}, {"run_ahead": False}, {"heads": ("nothing", "logits")}):
        model = fake.open_fake(fake.FakeExecutor(**options), chunk_tokens=chunk)
        with fake.session(model, prompt) as session:
            runs.append(fake.tokens(session, 12, seed=seed, **hot))
    model = fake.open_fake(fake.FakeExecutor(run_ahead=False))
    with fake.session(model, prompt) as session, fake.session(model, [1]) as other:
        params = SamplingParams(max_tokens=12, ignore_eos=True, seed=seed, **hot)
        pieces, noise = session.generate(params), other.generate(SamplingParams(seed=neighbour, temperature=1.0))
        beside = []
        for piece in pieces:
            beside += piece.ids
            next(noise, None)
        noise.close()
    assert [*runs, beside] == [runs[0]] * 4


def test_seeds_differ_and_are_reported(fake):
    model = fake.open_fake()
    answers = set()
    for _ in range(5):
        with fake.session(model, [1]) as session:
            answer = tuple(fake.tokens(session, 8, temperature=1.0))
            answers.add(answer)
            seed = session.stats.seed
        with fake.session(model, [1]) as session:
            assert tuple(fake.tokens(session, 8, temperature=1.0, seed=seed)) == answer
    assert len(answers) == 5


def test_the_lowest_id_wins_a_tie(fake):
    executor = fake.FakeExecutor()
    tie = executor.logits([0]) * 0
    tie[[7, 9]] = 1.0
    executor.logits = lambda history: tie
    for heads in (("nothing", "token"), ("nothing", "logits")):
        executor._capabilities = fake.FakeExecutor(heads=heads).capabilities()
        with fake.session(fake.open_fake(executor), [1]) as session:
            assert fake.tokens(session, 3) == [7, 7, 7]


def test_a_top_k_beyond_any_vocabulary_fits_into_the_i32_of_executors():
    assert SamplingParams(top_k=2**31).top_k == SamplingParams(top_k=10**30).top_k == MAX_TOP_K


def test_min_tokens_must_leave_a_token_that_may_be_picked():
    limits = RequestLimits(max_seq=64, vocab_size=8, eos_ids=(1,))
    for asked in ({"stop_ids": tuple(range(8))}, {"allowed_ids": (1, 3), "stop_ids": (3,)}, {"allowed_ids": (1,)}):
        with pytest.raises(RequestError, match="min_tokens"):
            admit(3, SamplingParams(min_tokens=1, **asked), limits)
        assert admit(3, SamplingParams(**asked), limits).max_tokens == 61
    assert admit(3, SamplingParams(min_tokens=1, allowed_ids=(1, 3)), limits).min_tokens == 1


PARAMS = st.builds(
    SamplingParams, temperature=st.sampled_from([0.0, 0.8]), top_k=st.sampled_from([0, 5]), top_p=st.just(0.9),
    seed=st.sampled_from([None, 1, 2]), stop=st.sampled_from([(), ("x",)]), stop_ids=st.sampled_from([(), (3, 4)]),
    max_tokens=st.sampled_from([None, 9]), ignore_eos=st.booleans(), logit_bias=st.sampled_from([(), ((1, 0.5),)]),
)  # fmt: skip


@given(PARAMS, PARAMS)
def test_what_is_the_same_but_for_the_seed(one, other):
    assert (one.all_but_seed == other.all_but_seed) is (replace(one, seed=None) == replace(other, seed=None))
    assert one.all_but_seed != other.all_but_seed or hash(one.all_but_seed) == hash(other.all_but_seed)


@given(PARAMS, st.integers(1, 63))
def test_what_admission_sets_and_what_it_leaves(asked, prompt):
    limits = RequestLimits(max_seq=64, vocab_size=8, eos_ids=(6, 1))
    made = admit(prompt, asked, limits)
    stop_ids = asked.stop_ids if asked.ignore_eos else tuple(sorted({*asked.stop_ids, 1, 6}))
    expected = replace(
        asked, max_tokens=min(asked.max_tokens or 64, 64 - prompt), seed=made.seed, stop_ids=stop_ids
    )  # checked anew
    assert made == expected and hash(made) == hash(expected)
    assert made.seed == asked.seed or (asked.seed is None and 0 <= made.seed < 2**63)
    assert admit(prompt, made, limits) is made


def test_more_least_tokens_than_there_is_room_for():
    with pytest.raises(RequestError, match="min_tokens must be from 0 to 4, not 5"):
        admit(60, SamplingParams(min_tokens=5), RequestLimits(max_seq=64, vocab_size=8))


def test_what_was_asked_of_parameters_once_is_theirs_alone():
    """``greedy`` and ``on_host`` are worked out once; copies with other values have their own, and equality none."""
    plain = SamplingParams()
    assert plain.greedy and not plain.on_host
    other = replace(plain, temperature=0.7, logprobs=1)
    assert not other.greedy and other.on_host
    admitted = plain.admitted(max_tokens=3, seed=1, stop_ids=(2,))
    assert admitted.greedy and not admitted.on_host
    fresh = SamplingParams(max_tokens=3, seed=1, stop_ids=(2,))
    assert admitted == fresh and hash(admitted) == hash(fresh) and repr(admitted) == repr(fresh)
    assert pickle.loads(pickle.dumps(admitted)) == fresh and asdict(admitted) == asdict(fresh)
