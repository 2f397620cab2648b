"""What a machine has, read from faked files; and that a report gives nothing of the host away."""

from __future__ import annotations

import json
import os
import socket

import pytest

from cacheir.bench import environment
from cacheir.runtime import usable_cores as cores


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, float("inf")),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "400000 100000"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "200000 100000"}, 0.5),
        ("0::/x\n", {"cpu.max": "300000 100000"}, 3.0),  # a container sees its own group as the root
        ("0::/../../y\n", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/a\n", {"unified/a/cpu.max": "100000 100000"}, 1.0),
        (
            "4:cpu,cpuacct:/a\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ("1:cpu:/d\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2.0),
        ("4:memory:/a\n", {"memory/a/cpu.max": "100000 100000"}, float("inf")),
        ("0::/\n", {"cpu.max": "nonsense"}, float("inf")),
        ("0::/\n", {"cpu.max": "100000 0"}, float("inf")),
        ("garbage\n", {}, float("inf")),
        ("", {}, float("inf")),
    ],
)
def test_case_e09_quotas_of_control_groups(tmp_path, membership, files, quota):
    write(tmp_path, {"membership": membership})
    write(tmp_path / "groups", files)
    assert cores.quota_cores(tmp_path / "groups", tmp_path / "membership") == quota
    usable = cores.usable_cores(tmp_path / "groups", tmp_path / "membership")
    assert usable == max(1, int(min(quota, cores.affinity_cores())))


def test_without_control_groups(tmp_path):
    assert cores.quota_cores(tmp_path / "none", tmp_path / "none") == float("inf")
    assert cores.usable_cores(tmp_path / "none", tmp_path / "none") == cores.affinity_cores() >= 1


def test_the_processor(tmp_path):
    write(
        tmp_path,
        {
            "x86": "model name\t: Example 9000\nflags\t: fpu sse4_2 avx avx2 fma amx_tile\n\nmodel name: B\n",
            "arm": "processor\t: 0\nFeatures\t: fp asimd asimddp sve\nModel\t\t: Board\n",
        },
    )
    x86, arm = environment.cpu(tmp_path / "x86"), environment.cpu(tmp_path / "arm")
    assert (x86["model"], x86["instruction_sets"]) == ("Example 9000", ["sse4_2", "avx", "avx2", "fma", "amx_tile"])
    assert (arm["model"], arm["instruction_sets"]) == ("Board", ["asimd", "asimddp", "sve"])
    assert environment.cpu(tmp_path / "none")["instruction_sets"] == []


@pytest.mark.parametrize(
    ("groups", "limit"),
    [
        ({}, None),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "1000000\n"}, 1_000_000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"memory/memory.limit_in_bytes": "500000\n"}, 500_000),
    ],
)
def test_memory(tmp_path, groups, limit):
    write(tmp_path, {"meminfo": "MemTotal:       2000 kB\nMemFree: 5 kB\nMemAvailable:   1500 kB\n"})
    write(tmp_path / "groups", groups)
    found = environment.memory(tmp_path / "meminfo", tmp_path / "groups")
    assert found == {"total_bytes": 2_048_000, "available_bytes": 1_536_000, "limit_bytes": limit}
    assert environment.memory(tmp_path / "none", tmp_path)["total_bytes"] is None


def test_peak_memory_is_that_of_this_process(tmp_path):
    write(tmp_path, {"status": "Name: x\nVmPeak: 9 kB\nVmHWM:\t     3 kB\n"})
    assert environment.peak_memory_bytes(tmp_path / "status") == 3072
    assert environment.peak_memory_bytes(tmp_path / "none") is None


def test_the_commit(tmp_path):
    inside = tmp_path / "src" / "x.py"
    write(tmp_path, {"src/x.py": "", ".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": "ab" * 20 + "\n"})
    assert environment.commit(inside) == "ab" * 20
    (tmp_path / ".git/refs/heads/main").unlink()
    assert environment.commit(inside) == ""
    write(tmp_path, {".git/packed-refs": "# pack-refs\n" + "cd" * 20 + " refs/heads/main\n"})
    assert environment.commit(inside) == "cd" * 20
    write(tmp_path, {".git/HEAD": "ef" * 20})
    assert environment.commit(inside) == "ef" * 20
    write(tmp_path, {".git/HEAD": "ref: ../../etc/passwd"})
    assert environment.commit(inside) == ""


def test_a_report_gives_nothing_of_the_host_away(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("CACHEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CACHEIR_THREADS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = environment.environment()
    text = json.dumps(found, allow_nan=False)
    assert str(tmp_path) not in text
    assert socket.gethostname() not in text.split('"')
    assert found["settings"] == {"CACHEIR_CACHE_DIR": "set", "CACHEIR_THREADS": "2"}
    assert found["thread_variables"]["OMP_NUM_THREADS"] == "3"
    assert found["numpy"]["version"]
    # Nothing is installed in a bare checkout.
    assert found["packages"].get("cacheir-core") in (None, found["cacheir"]["version"])
