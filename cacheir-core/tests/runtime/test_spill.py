"""Cold pages on the host or a disk, on the fake model: they come back whole, or are computed where that is cheaper."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from cacheir.errors import UsageError
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.spill import ASSUMED_BYTES_PER_S, SpillPolicy
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_spilled_comes_back_and_is_not_computed_again(fake, tmp_path, on_disk):
    executor = fake.FakeExecutor(page_tokens=4, groups=1)
    model = fake.open_fake(executor, kv_tokens=48, max_seq=64)
    engine = Engine(model, LIMITS, spill=SpillPolicy(mode="on", folder=tmp_path if on_disk else None))
    first, second = list(range(1, 30)), list(range(101, 130))
    for name, prompt in (("a", first), ("b", second)):
        engine.generate([job(model, name, prompt, 4)])
    assert engine.store.counts.spilled_blocks > 0
    executor.steps.clear()
    (events,) = engine.generate([job(model, "again", first, 4)])
    assert ids_of(events) == fake.expected(executor, first, 4)
    assert events[-1].usage.cached_tokens == 28
    assert engine.store.counts.restored_blocks > 0 and engine.store.counts.in_bytes > 0
    check_pages(engine)


def test_a_preemption_says_its_kind_and_what_it_cost(fake):
    """Without spilling what was evicted meanwhile is computed again; with it all of it comes back from the host."""
    costs = {}
    for mode in ("off", "on"):
        executor = fake.FakeExecutor(page_tokens=2, groups=1, run_ahead=False)
        engine = Engine(fake.open_fake(executor, kv_tokens=24), LIMITS, spill=SpillPolicy(mode=mode))
        jobs = [
            job(engine._model, name, [start + place for place in range(5)], 16) for start, name in ((0, "a"), (50, "b"))
        ]
        for one, events in zip(jobs, engine.generate(jobs)):
            assert ids_of(events) == fake.expected(executor, one.ids, 16)
        counters = engine.state.counters
        assert dict(counters.preemptions) == {"spill" if mode == "on" else "recompute": counters.preemptions.total()}
        costs[mode] = counters.recomputed_tokens
        check_pages(engine)
    assert costs["off"] > costs["on"]


def test_what_a_full_disk_does_not_take_is_computed_anew(fake, tmp_path, monkeypatch):
    executor = fake.FakeExecutor(page_tokens=4, groups=1)
    model = fake.open_fake(executor, kv_tokens=48, max_seq=64)
    engine = Engine(model, LIMITS, spill=SpillPolicy(mode="on", folder=tmp_path))

    def full(file, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    first, second = list(range(1, 30)), list(range(101, 130))
    for name, prompt in (("a", first), ("b", second), ("again", first)):
        (events,) = engine.generate([job(model, name, prompt, 4)])
        assert ids_of(events) == fake.expected(executor, prompt, 4)
    assert engine.store.counts.unwritten_blocks > 0 == engine.store.counts.spilled_blocks
    assert list(tmp_path.iterdir()) == []  # the file has no name
    check_pages(engine)


def test_a_folder_that_cannot_be_written_to_is_refused(fake, tmp_path):
    with pytest.raises(UsageError, match="cannot be spilled to"):
        Engine(fake.open_fake(), LIMITS, spill=SpillPolicy(mode="on", folder=tmp_path / "none"))


def test_nothing_is_spilled_where_computing_is_cheaper(fake):
    executor = fake.FakeExecutor(page_tokens=4, groups=1)
    model = fake.open_fake(executor, kv_tokens=48, max_seq=64)
    engine = Engine(model, LIMITS, spill=SpillPolicy(mode="advised"))
    engine.generate([job(model, "a", list(range(1, 30)), 4)])
    engine.store.token_seconds = 1e-12
    engine.state.index.evict(3)
    assert engine.store.counts.recomputing_is_cheaper == 3 and engine.store.bytes_held == 0
    assert not engine.store.estimate().worth_it
    engine.store.token_seconds = 1.0
    engine.state.index.evict(2)
    assert engine.store.counts.spilled_blocks == 2 and engine.store.estimate().worth_it
    check_pages(engine)


def test_pages_with_scales_are_not_spilled(fake):
    model = fake.open_fake()
    groups = [replace(group, dtype="int8") for group in model.kv_groups]
    with pytest.raises(UsageError, match="int8 do not come back bit for bit"):
        Engine(replace(model, kv_groups=tuple(groups)), LIMITS, spill=SpillPolicy(mode="on"))


@pytest.mark.parametrize(("calibrated", "source"), [(None, "assumed"), (5e9, "calibration")])
def test_a_move_has_the_speed_of_the_run_else_of_the_calibration_else_a_guess(fake, calibrated, source):
    model = fake.open_fake(fake.FakeExecutor(page_tokens=4, groups=1), kv_tokens=48, max_seq=64)
    engine = Engine(model, LIMITS, spill=SpillPolicy(mode="on", calibrated_bytes_per_s=calibrated))
    found = engine.store.estimate()
    assert (found.source, found.bytes_per_s) == (source, calibrated or ASSUMED_BYTES_PER_S)
    assert found.transfer_s == 2 * found.block_bytes / found.bytes_per_s
    engine.generate([job(model, "a", list(range(1, 30)), 4)])
    engine.state.index.evict(3)
    assert engine.store.estimate().source == "measured" and engine.store.estimate().bytes_per_s > 0
    check_pages(engine)


def test_a_calibration_decides_whether_the_first_page_is_moved(fake):
    """Computing a block takes 1 ms: pages that move within a microsecond are kept, those that take a second are not."""
    for bytes_per_s, kept in ((1e12, True), (1.0, False)):
        model = fake.open_fake(fake.FakeExecutor(page_tokens=4, groups=1), kv_tokens=48, max_seq=64)
        policy = SpillPolicy(mode="advised", calibrated_bytes_per_s=bytes_per_s)
        engine = Engine(model, LIMITS, spill=policy)
        engine.generate([job(model, "a", list(range(1, 30)), 4)])
        engine.store.token_seconds = 1e-3 / 4
        engine.state.index.evict(1)
        counts = engine.store.counts
        assert (counts.spilled_blocks, counts.recomputing_is_cheaper) == ((1, 0) if kept else (0, 1))
        check_pages(engine)
