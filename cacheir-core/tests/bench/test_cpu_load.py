"""Foreign load: what /proc/stat says minus what this process did."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from cacheir.bench.cpu_load import CpuTimes, busy_seconds, cpu_times, foreign_load, stolen_load, stolen_seconds
from cacheir.bench.validity import load_causes

STAT = """cpu  700 0 300 9000 100 10 20 30 50 0
cpu0 100 1 200 4000 50 5 6 7 40 0
cpu1 600 0 100 5000 50 5 14 23 10 0
cpu10 999 0 0 0 0 0 0 0 0 0
intr 12345
ctxt 1
"""


def test_busy_seconds_of_the_usable_cores():
    # user nice system irq softirq steal; guest time is part of user time.
    assert busy_seconds(STAT, {0}, 100) == (pytest.approx(3.19), 1)
    assert busy_seconds(STAT, {0, 1}, 100) == (pytest.approx(10.61), 2)
    assert busy_seconds(STAT, None, 100) == (pytest.approx(20.60), 3)


def test_time_that_other_machines_had():
    assert stolen_seconds(STAT, {0, 1}, 100) == pytest.approx(0.30)
    assert stolen_seconds("nothing", None, 100) == 0
    before, after = CpuTimes(0.0, 0.0, 0.0, 2, 1.0), CpuTimes(2.0, 3.0, 1.0, 2, 1.6)
    assert (stolen_load(before, after), foreign_load(before, after)) == (pytest.approx(0.15), pytest.approx(0.5))
    assert stolen_load(before, None) is None
    assert "50% of the cores' time (15% stolen by other machines)" in load_causes(0.5, 0.15)[0]
    assert "stolen" not in load_causes(0.5, 0.001)[0]


@pytest.mark.parametrize("text", ["", "cpu  1 2 3\n", "nothing\n", "cpu7 1 2 3 4\n"])
def test_what_says_nothing_about_these_cores(text):
    assert busy_seconds(text, {0}, 100) is None


@pytest.mark.parametrize(
    ("busy", "own", "seconds", "load"),
    [(2.0, 2.0, 1.0, 0.0), (2.0, 1.5, 1.0, 0.25), (1.0, 1.1, 1.0, 0.0), (9.0, 0.0, 1.0, 1.0), (2.0, 0.0, 0.1, None)],
)
def test_foreign_load(busy, own, seconds, load):
    found = foreign_load(CpuTimes(10.0, 5.0, 3.0, 2), CpuTimes(10.0 + seconds, 5.0 + busy, 3.0 + own, 2))
    assert found == (None if load is None else pytest.approx(load))
    assert foreign_load(None, CpuTimes(1, 1, 1, 1)) is None


@pytest.mark.skipif(cpu_times() is None, reason="the system has no /proc/stat")
def test_own_work_is_not_foreign_and_a_neighbours_is():
    def burn(seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            sum(range(1000))

    before = cpu_times()
    burn(0.4)
    alone = cpu_times()
    assert alone.own - before.own == pytest.approx(0.4, abs=0.1)
    code = "import time\nwhile time.process_time() < 0.6: sum(range(1000))\nprint('done', flush=True)\ninput()"
    start = cpu_times()  # before it begins, or it could have had its time before we have our next turn
    neighbour = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with neighbour:
        assert neighbour.stdout.readline() == b"done\n"
        beside = cpu_times()
        # The neighbour has not ended, so its time is not yet counted among this process's children.
        foreign = (beside.busy - start.busy) - (beside.own - start.own)
        assert foreign > 0.4
        share = foreign / ((beside.clock - start.clock) * start.cores)
        assert foreign_load(start, beside) == pytest.approx(min(1.0, share))
        neighbour.stdin.write(b"\n")
        neighbour.stdin.close()
        neighbour.wait()
    assert cpu_times().own - beside.own >= 0.5
