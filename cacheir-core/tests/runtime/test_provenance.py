"""Traces of tokens: each has its place, its kind of step, and the pages that hold what came before it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.prompt_lookup import Speculation
from cacheir.runtime.pages import FREED
from cacheir.runtime.provenance import STEPS, Trace
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams


def traced(model, name, ids, count, **fields) -> Job:
    params = admit(len(ids), SamplingParams(max_tokens=count, ignore_eos=True, **fields), model.limits)
    return Job(id=name, ids=tuple(ids), sampling=params, trace=Trace())


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_tokens_pages_hold_what_came_before_it(fake, run_ahead, drafts, temperature):
    executor = fake.FakeExecutor(page_tokens=4, run_ahead=run_ahead, script=None if temperature else repeating)
    model = fake.open_fake(executor, max_seq=128)
    engine = Engine(model, speculation=Speculation(draft_tokens=drafts))
    jobs = [traced(model, name, ids, 21, temperature=temperature) for name, ids in (("a", [1, 2, 3, 1, 2]), ("b", [9]))]
    answers = engine.generate(jobs)
    kinds = set()
    for job, events in zip(jobs, answers):
        sampled = [token for event in events for token in event.ids]
        history = [*job.ids, *sampled]
        assert [one.token for one in job.trace.tokens] == sampled
        assert [one.position for one in job.trace.tokens] == list(range(len(job.ids), len(history)))
        assert job.trace.tokens[0].step == "prefill" or len(job.ids) == 1
        for one in job.trace.tokens:
            kinds.add(one.step)
            tables = job.trace.tables[one.table]
            assert len(tables) == len(executor.kinds)
            for pool, kind, pages in zip(executor.pools, executor.kinds, tables):
                assert len(pages) == -(-one.position // 4)
                seen = 0 if kind.window is None else max(0, one.position - kind.window)
                assert FREED not in pages[seen // 4 :]
                # Nobody else ran since, but a page behind the window may have been taken again for a later position.
                if kind.window is None or one is job.trace.tokens[-1]:
                    held = [int(token) for page in pages for token in pool[page]]
                    assert held[seen : one.position] == history[seen : one.position]
        freed = [FREED in pages for pages in job.trace.tables[-1]]
        assert freed[0] is False and (freed[1] or run_ahead or drafts)
        named = job.trace.as_json()["page_tables"][-1][1]
        assert [page is None for page in named] == [page == FREED for page in job.trace.tables[-1][1]]
        assert len(job.trace.tables) < len(sampled), "a table is kept once"
    assert kinds <= set(STEPS) and {"prefill", "decode"} & kinds
    assert ("run_ahead" in kinds) <= run_ahead and ("draft" in kinds) == bool(drafts and not temperature)


def repeating(history: list[int]) -> int:
    return len(history) % 3 + 1


def test_a_job_with_a_trace_is_computed_for_itself(fake):
    model = fake.open_fake(fake.FakeExecutor())
    engine = Engine(model)
    jobs = [traced(model, name, [1, 2, 3], 4) for name in ("a", "b")]
    engine.generate(jobs)
    assert engine.state.counters.deduplicated_requests == 0
    assert [len(job.trace.tokens) for job in jobs] == [4, 4]


def test_the_token_that_ends_an_answer_is_traced_and_none_after_it(fake):
    model = fake.open_fake(fake.FakeExecutor(script=repeating))
    params = admit(1, SamplingParams(max_tokens=9, stop_ids=(1,)), model.limits)
    job = Job(id="a", ids=(7,), sampling=params, trace=Trace())
    (events,) = Engine(model).generate([job])
    assert [one.token for one in job.trace.tokens] == [2, 3, 1]
    assert events[-1].usage.sampled_tokens == 3


def test_without_a_trace_its_module_is_never_even_imported():
    code = """
import sys
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_model import open_fake
model = open_fake()
params = admit(2, SamplingParams(max_tokens=9), model.limits)
(events,) = Engine(model).generate([Job(id="a", ids=(1, 2), sampling=params)])
assert events[-1].outcome, events
print("cacheir.runtime.provenance" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
