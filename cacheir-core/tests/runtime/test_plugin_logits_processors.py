"""A plugin's logits processors change what the answers that name them are picked from, in their order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cacheir.errors import PluginError, RequestError, UsageError
from cacheir.plugins import LogitsProcessorSpec, SamplerSpec, hookimpl
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.host_sampling import ProcessorStage, open_sampler, pick_on_host
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing import plugin_host

PLUGIN = "cacheir_test_processors"
PROMPT = [1, 2, 3, 4, 5]


def no_repeats(params: SamplingParams) -> Any:
    """No token comes twice, the prompt's included."""

    def change(ids: Sequence[int], logits: Any) -> Any:
        assert logits.dtype == np.float32 and logits.ndim == 1
        logits[list(ids)] = -np.inf  # it may write into what it is given
        return logits

    return change


def raises(params: SamplingParams) -> Any:
    def change(ids: Sequence[int], logits: Any) -> Any:
        raise LookupError("no table")

    return change


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType(PLUGIN)
    factories = {
        "no-repeats": no_repeats,
        "raises": raises,
        "unmade": lambda params: {}["key"],
        "narrow": lambda params: lambda ids, logits: logits[1:],
        "nothing-left": lambda params: lambda ids, logits: np.full_like(logits, -np.inf),
        "turned": lambda params: lambda ids, logits: -logits,
        "plus-seed": lambda params: lambda ids, logits: logits + params.seed,
    }

    @hookimpl
    def cacheir_register_logits_processors() -> Any:
        for name, factory in factories.items():
            yield LogitsProcessorSpec(name=name, summary="", factory=factory)

    @hookimpl
    def cacheir_register_samplers() -> Any:
        yield SamplerSpec(name="last", summary="The last of the best.", factory=lambda params: last_of_the_best)

    module.cacheir_register_logits_processors = cacheir_register_logits_processors  # type: ignore[attr-defined]
    module.cacheir_register_samplers = cacheir_register_samplers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PLUGIN, module)
    return plugin_host(PLUGIN)


def last_of_the_best(logits: Any) -> list[int]:
    return [int(np.flatnonzero(logits[0] == logits[0].max())[-1])]


def opened(fake: Any, installation: Any) -> Any:
    executor = fake.FakeExecutor(run_ahead=True)
    return executor, fake.open_fake(executor, make_sampler=lambda params: open_sampler(params, installation))


def without_repeats(fake: Any, model: Any, prompt: list[int], count: int) -> list[int]:
    """The answer by hand: the likeliest token that was not there yet, one after another."""
    ids = list(prompt)
    for _ in range(count):
        with fake.session(model, ids) as session:
            logits = np.array(session.logits())
        logits[ids] = -np.inf
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def test_every_token_of_the_answer_is_picked_from_changed_logits(fake: Any, installation: Any) -> None:
    _, model = opened(fake, installation)
    sampling = SamplingParams(logits_processors=("no-repeats",), max_tokens=40, ignore_eos=True)
    with fake.session(model, PROMPT) as session:
        made = [token for piece in session.generate(sampling) for token in piece.ids]
    assert made == without_repeats(fake, model, PROMPT, 40)
    fake.assert_nothing_leaks(model)


def test_requests_of_the_engine_have_their_own(fake: Any, installation: Any) -> None:
    executor, model = opened(fake, installation)
    engine = Engine(model, EngineLimits(max_batch=4, max_rows=4, max_tokens=32, chunk_tokens=8))
    jobs = []
    for names in ((), ("no-repeats",), ("raises",)):
        sampling = SamplingParams(logits_processors=names, max_tokens=12, ignore_eos=True)
        jobs.append(Job(id=str(names), ids=tuple(PROMPT), sampling=admit(len(PROMPT), sampling, model.limits)))
    plain, changed, failed = engine.generate(jobs)
    assert [token for event in plain for token in event.ids] == fake.expected(executor, PROMPT, 12)
    assert [token for event in changed for token in event.ids] == without_repeats(fake, model, PROMPT, 12)
    (last,) = failed
    assert last.outcome == "error" and "'raises' raised LookupError: no table" in str(last.error)
    engine.close()


def test_order_and_a_sampler_beside_them(installation: Any) -> None:
    logits = np.array([0, 3, 1, 3], np.float32)

    def picked(sampler: str, *names: str, ids: Sequence[int] = (2,)) -> int | None:
        params = SamplingParams(sampler=sampler, logits_processors=names, seed=5)
        return pick_on_host(logits, params, ids, 0, None, sampler=open_sampler(params, installation))[0]

    assert (picked("", "plus-seed"), picked("", "turned")) == (1, 0)
    assert (picked("last"), picked("last", "no-repeats", ids=(3,))) == (3, 1)
    # A token that was barred first is the likeliest once signs are turned.
    assert picked("", "turned", "no-repeats", ids=(0,)) == 2
    assert logits.tolist() == [0, 3, 1, 3]
    params = SamplingParams(logits_processors=("nothing-left",))
    token, error = pick_on_host(logits, params, (1,), 0, None, sampler=open_sampler(params, installation))
    assert token is None and "leaves none" in str(error)


def test_a_grammar_has_the_last_word(installation: Any) -> None:
    """A job's own stages come after those of plugins."""
    params = SamplingParams(logits_processors=("turned",))
    only_one = ProcessorStage("only one", lambda ids, logits: np.where(np.arange(4) == 1, logits, -np.inf))
    logits = np.array([0, 3, 1, 2], np.float32)
    sampler = open_sampler(params, installation)
    assert pick_on_host(logits, params, (1,), 0, None, sampler=sampler, stages=(only_one,))[0] == 1


def test_bad_names_and_bad_processors_are_named(fake: Any, installation: Any) -> None:
    _, model = opened(fake, installation)
    with fake.session(model, PROMPT) as session:
        with pytest.raises(UsageError, match="'no-repeat'"):
            session.generate(SamplingParams(logits_processors=("no-repeat",)))
        with pytest.raises(PluginError, match="logits processor 'unmade' raised KeyError"):
            session.generate(SamplingParams(logits_processors=("no-repeats", "unmade")))
        with pytest.raises(PluginError, match=r"logits processor 'narrow' gave float32\[\d+\] for f32 \[\d+\]"):
            list(session.generate(SamplingParams(logits_processors=("narrow",))))
    for bad in (("",), (3,), ["a"] * 17):
        with pytest.raises(RequestError, match="logits_processors"):
            SamplingParams(logits_processors=bad)  # type: ignore[arg-type]
    fake.assert_nothing_leaks(model)
