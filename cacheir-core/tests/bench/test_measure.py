"""Measuring runs of the fake model: what is kept, what is marked invalid and why, and what the report says."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

from cacheir.bench.cpu_load import CpuTimes
from cacheir.bench.generation import Sample, measure
from cacheir.bench.report import generation_report, lines, start_up_report, write_report
from cacheir.bench.start_up import StartUp, child_environment, time_child
from cacheir.bench.validity import causes
from cacheir.errors import BackendError, RequestError, UsageError

PROMPT = list(range(65, 89))


class FakeRuntime:
    """Sessions on the fake model; counters and a clock that the test turns."""

    def __init__(self, fake, **options):
        self.model = fake.open_fake(fake.FakeExecutor(page_tokens=16), **options)
        self._session = lambda: fake.session(self.model)
        self.counts = {"compiles": 0, "captures": 0}
        self.sessions = 0

    def session(self):
        self.sessions += 1
        return self._session()

    def counters(self):
        return dict(self.counts)


def quiet_clock():
    """A machine on which nobody else runs, at a second a look."""
    now = iter(range(10**6))
    return lambda: CpuTimes(float(next(now)), 5.0, 5.0, 2)


def test_runs_are_measured_apart(fake):
    runtime = FakeRuntime(fake)
    found = measure(runtime, PROMPT, decode_tokens=32, repeats=3, warmup=2, clock=quiet_clock())
    assert runtime.sessions == 5 and len(found.samples) == 3
    expected = tuple(fake.expected(runtime.model.executor, PROMPT, 33))
    for sample in found.samples:
        assert sample.ids == expected and sample.valid and sample.foreign_load == 0.0
        assert len(sample.decode_ms) == 32 and sample.prefill_ms > 0
        assert sample.prefill_ms <= sample.ttft_ms <= sample.total_ms
    fake.assert_nothing_leaks(runtime.model)


def test_the_times_of_tokens_that_come_at_once_are_shared(fake, monkeypatch):
    """An executor that runs ahead and hands its tokens over four at a time, on a clock that the test turns."""
    now = [0.0]
    monkeypatch.setattr("cacheir.runtime.runner.time.perf_counter", lambda: now[0])
    runtime = FakeRuntime(fake)
    executor = runtime.model.executor
    plain, submit = executor.run_ahead, executor.submit

    def in_bunches(step, n, sink):
        kept = []

        def keep(rows):
            kept.append(rows)
            if len(kept) == 4:
                give()
            return False

        def give():
            for rows in kept:
                sink(rows)
                now[0] += 1e-6
            kept.clear()

        took = plain(step, n, keep)
        give()
        return took

    def slow(step):
        now[0] += 0.005
        return submit(step)

    monkeypatch.setattr(executor, "run_ahead", in_bunches)
    monkeypatch.setattr(executor, "submit", slow)
    found = measure(runtime, PROMPT, decode_tokens=32, repeats=1, warmup=1, clock=quiet_clock())
    (sample,) = found.samples
    assert sum(sample.decode_calls) == 32 and max(sample.decode_calls) > 4
    arrivals = (0.0, *sample.decode_arrivals_ms)
    gaps = [after - before for before, after in zip(arrivals, arrivals[1:])]
    assert min(gaps) < 0.01 and max(gaps) > 19
    assert sample.decode_ms == pytest.approx([5.0] * 32, rel=0.01)
    assert sum(sample.decode_ms) == pytest.approx(sample.decode_arrivals_ms[-1])
    report = generation_report(found)
    assert report["decode_ms"]["p50"] == pytest.approx(report["decode_ms_avg"], rel=0.01)
    assert report["samples"][0]["decode_arrivals_ms"] == list(sample.decode_arrivals_ms)
    assert report["samples"][0]["decode_calls"] == list(sample.decode_calls)


def test_the_report_is_the_specifications(fake):
    found = measure(FakeRuntime(fake), PROMPT, decode_tokens=32, repeats=2, warmup=0, clock=quiet_clock())
    report = generation_report(found)
    json.dumps(report, allow_nan=False)
    assert report["prompt_tokens"] == 24 and report["decode_tokens"] == 32
    steps = [ms for sample in report["samples"] for ms in sample["decode_ms"]]
    assert len(steps) == 64
    assert report["decode_ms_avg"] == pytest.approx(statistics.fmean(steps))
    assert report["decode_tokens_per_s"] == pytest.approx(1000 / report["decode_ms_avg"])
    prefill = statistics.fmean(sample["prefill_ms"] for sample in report["samples"])
    assert report["prefill_ms_avg"] == pytest.approx(prefill)
    assert report["prefill_tokens_per_s"] == pytest.approx(24_000 / prefill)
    assert report["kv_cache"]["page_size"] == 16
    assert {layer["tokens"] for layer in report["kv_cache"]["layers"].values()} <= {56, 57}
    assert set(report["kv_cache"]["layers"]) == {"0", "1", "2"}
    assert report["token_ids"] == list(found.samples[0].ids) and report["prompt_ids"] == PROMPT
    assert report["valid"] and report["runs"] == {"counted": 2, "all": 2, "invalid_causes": {}}


def test_a_run_beside_others_is_kept_and_marked(fake):
    """The second of three runs has a neighbour that takes a fifth of the machine."""
    times = [(float(second), 0.0) for second in range(8)]
    busy = [0, 0, 0, 0, 0.4, 0.4, 0.4, 0.4]
    looks = iter(CpuTimes(clock, b, 0.0, 2) for (clock, _), b in zip(times, busy))
    found = measure(FakeRuntime(fake), PROMPT, decode_tokens=4, repeats=3, warmup=0, clock=lambda: next(looks))
    assert [sample.valid for sample in found.samples] == [True, False, True]
    assert found.samples[1].invalid == ("foreign CPU load: 20% of the cores' time, more than 10%",)
    report = generation_report(found)
    assert report["valid"] and report["runs"]["counted"] == 2 and len(report["samples"]) == 3
    assert report["decode_ms"]["count"] == 8
    assert report["runs"]["invalid_causes"] == {"foreign CPU load": 1}
    assert "invalid runs: 1 of 3: foreign CPU load" in lines(report)


def test_runs_too_short_to_tell_go_by_the_series(fake):
    now = iter([0.0, *(0.1 * step for step in range(1, 7)), 1.0])
    looks = (CpuTimes(clock, clock * 2, 0.0, 2) for clock in now)
    found = measure(FakeRuntime(fake), PROMPT, decode_tokens=2, repeats=3, warmup=0, clock=lambda: next(looks))
    assert [sample.foreign_load for sample in found.samples] == [None] * 3
    assert found.series_load == 1.0 and not any(sample.valid for sample in found.samples)
    report = generation_report(found)
    assert not report["valid"] and report["runs"]["counted"] == 0 and report["runs"]["all"] == 3
    assert report["decode_ms"]["count"] == 6  # the averages are over all
    assert any("no run is valid" in line for line in lines(report))


def test_a_compile_in_a_run_is_marked(fake):
    runtime = FakeRuntime(fake)
    submit = runtime.model.executor.submit

    def compiling(step):
        if runtime.sessions == 2 and step.mode == "prefill":
            runtime.counts["compiles"] += 3
        return submit(step)

    runtime.model.executor.submit = compiling
    found = measure(runtime, PROMPT, decode_tokens=2, repeats=3, warmup=0, clock=quiet_clock())
    assert [sample.invalid for sample in found.samples] == [(), ("a kernel was compiled (3 times)",), ()]


def test_runs_that_differ_are_marked(fake):
    runtime = FakeRuntime(fake)
    executor = runtime.model.executor
    plain = executor.logits
    executor.logits = lambda history: plain(history) * (-1 if runtime.sessions == 3 else 1)
    found = measure(runtime, PROMPT, decode_tokens=4, repeats=3, warmup=0, clock=quiet_clock())
    assert [sample.invalid for sample in found.samples] == [(), (), ("the tokens differ from those of the first run",)]


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ({}, ()),
        ({"cached_tokens": 16}, ("prefix hit: 16 tokens of the prompt had been computed before",)),
        (
            {"counters_before": {"captures": 1}, "counters_after": {"captures": 2}},
            ("a device graph was captured (1 times)",),
        ),
        ({"counters_before": {"captures": 1}, "counters_after": {"captures": 1, "fallbacks": 9}}, ()),
        ({"foreign_load": 0.10}, ()),
        ({"foreign_load": 0.11}, ("foreign CPU load: 11% of the cores' time, more than 10%",)),
    ],
)
def test_causes(seen, found):
    nothing = {"cached_tokens": 0, "counters_before": {}, "counters_after": {}, "foreign_load": None}
    assert causes(**{**nothing, **seen}) == found


def test_what_does_not_fit_is_said(fake):
    runtime = FakeRuntime(fake, max_seq=40)
    with pytest.raises(RequestError, match=r"after 16 tokens instead of 33"):
        measure(runtime, PROMPT, decode_tokens=32, repeats=1, warmup=0, clock=quiet_clock())
    fake.assert_nothing_leaks(runtime.model)
    for bad in ({"decode_tokens": 0}, {"repeats": 0}, {"warmup": -1}):
        with pytest.raises(RequestError, match=next(iter(bad))):
            measure(runtime, PROMPT, **{"decode_tokens": 1, "repeats": 1, "warmup": 0, **bad})


def child(code):
    return time_child([sys.executable, "-c", code], {}, "cold")


def test_the_first_byte_of_a_child_is_timed():
    found = child(
        "import sys, time; memory = b'x' * 60_000_000; time.sleep(0.2); print('a', flush=True); time.sleep(0.3);"
        "sys.stderr.write('x' * 200_000); print('b')"
    )
    assert found.cache == "cold" and found.first_token_ms >= 200
    assert found.total_ms >= found.first_token_ms + 300
    assert found.peak_memory_bytes is None or found.peak_memory_bytes > 60_000_000


@pytest.mark.parametrize(
    ("code", "said"), [("import sys; sys.exit('no such model')", "no such model"), ("pass", "ended with 0 and without")]
)
def test_a_child_that_says_nothing_is_an_error(code, said):
    with pytest.raises(BackendError, match=said):
        child(code)


def test_a_child_may_keep_its_bytecode_and_has_a_cache_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("CACHEIR_CACHE_DIR", "elsewhere")
    monkeypatch.setenv("KEPT", "as it is")
    code = "import os, sys; print(sys.dont_write_bytecode, os.environ['CACHEIR_CACHE_DIR'], os.environ['KEPT'])"
    said = subprocess.check_output([sys.executable, "-c", code], env=child_environment(tmp_path), text=True)
    assert said == f"False {tmp_path} as it is\n"


def test_start_up_leaves_invalid_children_out():
    def sample(cache, ms, load=None):
        invalid = ("foreign CPU load: 50%",) if load else ()
        return StartUp(
            cache=cache,
            first_token_ms=ms,
            total_ms=ms,
            peak_memory_bytes=int(ms),
            foreign_load=load,
            invalid=invalid,
        )

    report = start_up_report([sample("cold", 900.0), sample("warm", 100.0), sample("cold", 5000.0, 0.5)])
    assert report["cold"]["first_token_ms"]["mean"] == 900 and report["cold"]["valid"]
    assert report["warm"]["peak_memory_bytes"] == 100 and len(report["samples"]) == 3
    report = start_up_report([sample("cold", 900.0, 0.5)])
    assert not report["cold"]["valid"] and report["cold"]["first_token_ms"]["mean"] == 900
    json.dumps(report)


def test_a_report_is_written_whole_or_not_at_all(tmp_path):
    write_report(tmp_path / "a.json", "old")
    write_report(tmp_path / "a.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"] and (tmp_path / "a.json").read_text() == "new"
    with pytest.raises(UsageError, match="cannot be written"):
        write_report(tmp_path / "a.json" / "b.json", "x")


def test_a_sample_says_whether_it_counts():
    sample = Sample(
        ttft_ms=1,
        prefill_ms=1,
        decode_ms=(1,),
        decode_arrivals_ms=(1,),
        decode_calls=(1,),
        total_ms=2,
        ids=(1,),
        cached_tokens=0,
        foreign_load=None,
        invalid=("x",),
    )
    assert not sample.valid
