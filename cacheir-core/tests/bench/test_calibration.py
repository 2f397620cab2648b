"""Calibrations: what is fitted, what is kept and found again, and what cannot be used and is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.bench.calibration import (
    FORMAT,
    BackendRates,
    Calibration,
    KernelRate,
    calibration_path,
    load_calibration,
    save_calibration,
)
from cacheir.bench.kernel_rates import Sample, fit_rate, fitted
from cacheir.bench.machine_rates import MachineRates, machine_rates
from cacheir.bench.spill_speed import spill_speed
from cacheir.cli.show_calibration import calibration_text
from cacheir.schedule.op_cost import Cost

RATES = st.floats(1e-14, 1e-9)


def sample(cost: Cost, seconds: float, key: str = "k") -> Sample:
    return Sample(key=key, numerics="f32", cost=cost, seconds=seconds)


COSTS = [Cost(bytes=b, operations=o) for b in (10_000, 3_000_000, 40_000_000) for o in (0, 5_000_000, 900_000_000)]


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-7, 1e-4), RATES, RATES, st.integers(0, len(COSTS) - 1))
def test_a_rate_is_found_again_though_one_launch_was_disturbed(
    launch_s: float, s_per_byte: float, s_per_operation: float, disturbed: int
) -> None:
    planted = KernelRate(launch_s=launch_s, s_per_byte=s_per_byte, s_per_operation=s_per_operation)
    samples = [sample(cost, planted.seconds(cost.bytes, cost.operations)) for cost in COSTS] * 2
    samples[disturbed] = sample(COSTS[disturbed], 1.0 + samples[disturbed].seconds * 50)
    found = fit_rate(samples)
    for cost in COSTS:
        wanted = planted.seconds(cost.bytes, cost.operations)
        assert found.seconds(cost.bytes, cost.operations) == pytest.approx(wanted, rel=0.1)


def test_no_part_of_a_rate_is_negative() -> None:
    falling = [sample(Cost(bytes=size), 1.0 / size) for size in (1, 10, 100)]
    rate = fit_rate(falling)
    assert min(rate.launch_s, rate.s_per_byte, rate.s_per_operation) >= 0
    assert fit_rate([sample(Cost(), 2e-6)]).seconds(0, 0) == pytest.approx(2e-6)


def test_a_kernel_has_a_rate_for_each_format_and_one_for_all() -> None:
    samples = [sample(Cost(bytes=1000), 1e-6, "k@q8_0"), sample(Cost(bytes=1000), 3e-6, "k@f32")]
    assert set(fitted(samples)) == {"k", "k@q8_0", "k@f32"}


def calibration(backend: str = "toy", threads: str = "2", launch_s: float = 1e-6) -> Calibration:
    rate = KernelRate(launch_s=launch_s, s_per_byte=1e-10, s_per_operation=1e-12)
    rates = BackendRates(kernels={"toy.add": rate}, joined=("toy.view",), step_s=1e-5, operations_per_s={"f32": 1e11})
    machine = MachineRates(copy_bytes_per_s=2e10, read_bytes_per_s=1e10, operations_per_s={"f32": 1e11})
    return Calibration(
        format=FORMAT,
        processor="a processor",
        instruction_sets=("avx2",),
        cores=2,
        threads={threads: machine},
        backends={backend: {threads: rates}},
        devices={"gpu": {"h2d_bytes_per_s": 5e10}},
    )


def test_what_is_kept_is_found_and_joins_what_was_there(tmp_path: Path) -> None:
    assert load_calibration(tmp_path)[0] is None
    save_calibration(calibration(), tmp_path)
    save_calibration(calibration("other", "1"), tmp_path)
    save_calibration(calibration(launch_s=7e-6), tmp_path)
    found, problem = load_calibration(tmp_path)
    assert found is not None and not problem
    assert set(found.threads) == {"1", "2"} and set(found.backends) == {"toy", "other"}
    rates = found.rates("toy", 2)
    assert rates is not None and rates.kernels["toy.add"].launch_s == 7e-6
    assert found.rates("toy", 1) is None and found.rates("third", 2) is None
    text = calibration_text(found)
    assert "toy.add" in text and "10.0 GB/s" in text and "h2d_bytes_per_s 5e+10" in text


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 99}', "full", "a", "-1", "0", "9" * 5000])
def test_one_that_cannot_be_used_is_said(tmp_path: Path, damage: str) -> None:
    path = save_calibration(calibration(), tmp_path)
    if damage == "full":
        damage = json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1})
    elif damage and damage[0] not in "[{":  # a number of threads that is none
        whole = json.loads(path.read_text())
        damage = json.dumps({**whole, "threads": dict.fromkeys([damage], whole["threads"]["2"])})
    path.write_text(damage)
    found, problem = load_calibration(tmp_path)
    assert found is None
    assert "cacheir profile --calibrate" in problem and "\n" not in problem and len(problem) < 600


def test_without_one_the_way_to_get_it_is_said(tmp_path: Path) -> None:
    found, problem = load_calibration(tmp_path)
    assert found is None
    assert problem == "this machine is not calibrated, so nothing is predicted: run cacheir profile --calibrate"
    calibration_path(tmp_path).mkdir(parents=True)
    assert "cannot be read" in load_calibration(tmp_path)[1]


def test_the_machine_moves_and_computes_something() -> None:
    rates = machine_rates(1, sample_mb=4, repeats=1)
    assert 1e6 < rates.read_bytes_per_s < 1e13
    assert 1e6 < rates.copy_bytes_per_s < 1e13
    assert set(rates.operations_per_s) == {"f32", "f64"}
    assert all(1e6 < value < 1e15 for value in rates.operations_per_s.values())


def test_the_speed_of_moving_pages_is_the_device_s_else_the_memory_s(tmp_path: Path) -> None:
    found, said = spill_speed(tmp_path, "toy")
    assert found is None and "cacheir profile --calibrate" in said and "guess" in said
    save_calibration(calibration(threads="1"), tmp_path)
    save_calibration(calibration(threads="16"), tmp_path)
    known, _ = load_calibration(tmp_path)
    assert known is not None
    found, said = spill_speed(tmp_path, "toy")
    # What is copied is read and written, and a single thread moves pages.
    assert found == known.threads["1"].copy_bytes_per_s / 2 and f"{found / 1e9:.1f} GB/s" in said
    rates = {"d2h_unpinned_bytes_per_s": 4e9, "h2d_unpinned_bytes_per_s": 12e9, "d2h_bytes_per_s": 5e10}
    save_calibration(replace(known, devices={"cuda": rates}), tmp_path)
    assert spill_speed(tmp_path, "cuda")[0] == pytest.approx(6e9)  # out and back one after another
    assert spill_speed(tmp_path, "toy")[0] == found
    save_calibration(replace(known, devices={"cuda": {"d2h_unpinned_bytes_per_s": 4e9}}), tmp_path)
    assert spill_speed(tmp_path, "cuda")[0] == found
