"""A plugin's sampler picks the tokens of the answers that name it, and what it does wrong is its own fault."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cacheir.errors import PluginError, RequestError, UsageError
from cacheir.plugins import SamplerSpec, hookimpl
from cacheir.runtime.host_sampling import open_sampler
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing import plugin_host

PLUGIN = "cacheir_test_samplers"


class SecondBest:
    """Takes the second largest logit, and counts how often it was made."""

    made: list[SamplingParams] = []  # noqa: RUF012  what the factory was called with

    def __init__(self, params: SamplingParams) -> None:
        self.made.append(params)

    def __call__(self, logits: Any) -> Any:
        assert logits.shape[0] == 1 and logits.dtype == np.float32
        picked = np.argsort(-logits, axis=-1, kind="stable")[:, 1]
        logits[...] = 0  # it may write into what it is given
        return picked


def raises(params: SamplingParams) -> Any:
    def pick(logits: Any) -> Any:
        raise LookupError("no table")

    return pick


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType(PLUGIN)

    @hookimpl
    def cacheir_register_samplers() -> Any:
        yield SamplerSpec(name="second-best", summary="The second best.", factory=SecondBest)
        yield SamplerSpec(name="raises", summary="Never works.", factory=raises)
        yield SamplerSpec(name="unmade", summary="Cannot be made.", factory=lambda params: {}["key"])
        yield SamplerSpec(name="wide", summary="Two for one.", factory=lambda params: lambda logits: [1, 2])
        yield SamplerSpec(name="beyond", summary="No id.", factory=lambda params: lambda logits: [logits.shape[1]])
        yield SamplerSpec(name="barred", summary="A masked id.", factory=lambda params: lambda logits: [0])

    module.cacheir_register_samplers = cacheir_register_samplers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PLUGIN, module)
    monkeypatch.setattr(SecondBest, "made", [])
    return plugin_host(PLUGIN)


def opened(fake: Any, installation: Any, **options: Any) -> Any:
    executor = fake.FakeExecutor(run_ahead=True)
    return executor, fake.open_fake(executor, make_sampler=lambda params: open_sampler(params, installation), **options)


def test_it_picks_every_token_of_the_answer(fake: Any, installation: Any) -> None:
    _, model = opened(fake, installation)
    prompt, made = [1, 2, 3, 4, 5], []
    with fake.session(model, prompt) as session:
        for piece in session.generate(SamplingParams(sampler="second-best", max_tokens=6, ignore_eos=True)):
            made += piece.ids
    history = list(prompt)
    for token in made:
        with fake.session(model, history) as session:
            assert token == int(np.argsort(-session.logits(), kind="stable")[1])
        history.append(token)
    assert len(made) == 6
    (params,) = SecondBest.made
    assert params.seed is not None and params.max_tokens == 6
    fake.assert_nothing_leaks(model)


def test_other_answers_are_left_alone(fake: Any, installation: Any) -> None:
    executor, model = opened(fake, installation)
    with fake.session(model, [1, 2, 3]) as session:
        assert fake.tokens(session, 5) == fake.expected(executor, [1, 2, 3], 5)
    assert not SecondBest.made


def test_an_unknown_one_is_refused_at_once(fake: Any, installation: Any) -> None:
    _, model = opened(fake, installation)
    with fake.session(model, [1]) as session:
        with pytest.raises(UsageError, match="no sampler 'secnd-best'"):
            session.generate(SamplingParams(sampler="secnd-best"))
        with pytest.raises(PluginError, match="'unmade' raised KeyError"):
            session.generate(SamplingParams(sampler="unmade"))
    with pytest.raises(RequestError, match="sampler must be a name"):
        SamplingParams(sampler=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "'raises' raised LookupError: no table"),
        ("wide", r"gave int64\[2\] for logits"),
        ("beyond", "picked id 260, which may not be taken"),
    ],
)
def test_a_wrong_one_is_named(fake: Any, installation: Any, name: str, words: str) -> None:
    _, model = opened(fake, installation)
    with fake.session(model, [1]) as session, pytest.raises(PluginError, match=words):
        list(session.generate(SamplingParams(sampler=name)))
    fake.assert_nothing_leaks(model)


def test_a_masked_id_may_not_be_picked(installation: Any) -> None:
    from cacheir.runtime.host_sampling import pick_on_host, sample_by_plugin
    from cacheir.runtime.vocabulary_mask import packed_mask

    mask, logits = packed_mask([2, 5], 8), np.arange(8, dtype=np.float32)
    good = open_sampler(SamplingParams(sampler="second_best"), installation)
    assert good is not None
    assert sample_by_plugin(logits, good, 3, mask) == (2, None)
    assert logits.tolist() == list(range(8))
    bad = open_sampler(SamplingParams(sampler="barred"), installation)
    assert bad is not None
    with pytest.raises(PluginError, match="picked id 0"):
        sample_by_plugin(logits, bad, 3, mask)
    bad_logits = np.full(8, np.nan, np.float32)
    token, error = pick_on_host(bad_logits, SamplingParams(sampler="second_best"), [1, 2, 3, 4], 0, None, sampler=good)
    assert token is None and "after position 3 are not finite" in str(error)
