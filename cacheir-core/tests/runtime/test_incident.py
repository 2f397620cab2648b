"""Audits of the cache and recorded runs: a changed page is found, a run is replayed, a killed save leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from cacheir.errors import ArtifactDamagedError
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.incident import load_incident, replay, save_incident
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job


def test_the_audit_finds_a_page_that_was_changed_behind_the_engine(fake):
    executor = fake.FakeExecutor(page_tokens=4)
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS, audit_every=2)
    prompt = list(range(1, 18))
    for name in "abc":
        engine.generate([job(model, name, prompt, 2)])
    assert dict(engine.state.counters.audits) == {"clean": 1} and not engine.findings
    (node, *_) = engine.state.index.match(prompt)[2:]
    executor.pools[1][node.pages[1], 3] += 1
    for name in "de":
        engine.generate([job(model, name, prompt, 2)])
    (finding,) = engine.findings
    assert (finding.group, finding.page, finding.pool_page, finding.layer) == (1, 2, node.pages[1], 1)
    assert "differ by 1" in finding.problem
    assert dict(engine.state.counters.audits) == {"clean": 1, "corrupt": 1}
    check_pages(engine)


def test_an_incident_is_replayed_to_the_same_tokens(fake, tmp_path):
    def run(script):
        executor = fake.FakeExecutor(page_tokens=2, script=script)
        model = fake.open_fake(executor, kv_tokens=60)
        return model, Engine(model, LIMITS)

    model, engine = run(None)
    jobs = [job(model, f"i{n}", [n, n + 1, n + 2], 9, temperature=0.8 * (n % 2)) for n in range(5)]
    events = engine.generate(jobs)
    engine.submit(job(model, "gone", [9, 9], 9), [].append)
    engine.step()
    engine.cancel("gone")
    path = tmp_path / "incident.json"
    save_incident(path, engine.recorder.incident("key", engine.state.limits))
    assert [entry.name for entry in tmp_path.iterdir()] == ["incident.json"]
    found = load_incident(path)
    assert found["decisions"] and len(found["jobs"]) == 6
    _, second = run(None)
    outcome = replay(second, found)
    assert outcome.parted is None and outcome.tokens >= sum(len(ids_of(mine)) for mine in events)
    _, other = run(lambda history: len(history) % 7)
    assert replay(other, found).parted is not None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "jobs": [{"sampling": {}, "ids": "x", "tokens": []}]}', "[" * 9999]
)
def test_a_file_that_is_no_incident_is_refused(tmp_path, text):
    path = tmp_path / "incident.json"
    path.write_text(text)
    with pytest.raises(ArtifactDamagedError, match="no incident file"):
        load_incident(path)


KILLED = """
import os, signal, sys
from pathlib import Path
from cacheir.runtime.engine.incident import save_incident

class Deadly(dict):
    def items(self):
        os.kill(os.getpid(), signal.SIGKILL)

save_incident(Path(sys.argv[1]), {"jobs": [1] * 10000, "last": Deadly(a=1)})
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("by_reading", [False, True])
def test_a_killed_save_of_an_incident_is_cleared_away_by_the_next_and_named(tmp_path, capsys, by_reading):
    path = tmp_path / "incident.json"
    save_incident(path, {"jobs": []})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert json.loads(path.read_text()) == {"jobs": []}
    (leftover,) = (found for found in tmp_path.iterdir() if found != path)
    if by_reading:
        with pytest.raises(ArtifactDamagedError):
            load_incident(path)
    for _ in range(2):
        save_incident(path, {"jobs": [1]})
    assert json.loads(path.read_text()) == {"jobs": [1]} and list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().err == f"removed {leftover}, which a process that was killed left behind\n"


def test_jobs_that_ended_are_forgotten_and_no_more_of_them_than_need_be(fake):
    model = fake.open_fake()
    engine = Engine(model, LIMITS, record=2)  # which keeps eight jobs
    for number in range(14):
        engine.submit(job(model, str(number), [5, number], 2 if number != 3 else 30), [].append)
        if number != 3:
            while str(number) in engine.state.by_job:
                engine.step()
    kept = [one["id"] for one in engine.recorder.incident("key", engine.state.limits)["jobs"]]
    assert kept == ([*map(str, range(6, 14))] if "3" not in engine.state.by_job else ["3", *map(str, range(7, 14))])
    engine.close()
