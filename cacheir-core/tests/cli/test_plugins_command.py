"""``cacheir plugins``: every table, its JSON, and the commands that write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.plugins.check_module import hook_specs
from cacheir.plugins.inventory import kind_rows
from cacheir.plugins.kinds import KINDS, Kind
from cacheir.testing import plugin_host

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[[str, str], None]


def test_list(cacheir: Run) -> None:
    done = cacheir("plugins", "list")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr
    assert lines[0].split() == ["PLUGIN", "PACKAGE", "VERSION", "STATE", "PROVIDES"]
    core = next(line for line in lines if line.startswith("core "))
    for part in ("cacheir-core", "loaded", " ops, ", " passes, ", " commands"):
        assert part in core
    assert lines[-1].endswith("plugins.") or lines[-1] == "1 plugin."


def test_list_as_json(cacheir: Run) -> None:
    found = json.loads(cacheir("plugins", "list", "--json").stdout)
    assert found["format"] == 1 and found["hook_api"] == [1, 0]
    core = found["plugins"][0]
    assert core["name"] == "core" and core["state"] == "loaded" and core["problems"] == []
    assert core["provides"]["passes"] > 5 and "cacheir_register_passes" in core["hooks"]
    assert core["summary"] and core["seconds"] > 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.attribute)
def test_rows_of_a_kind(kind: Kind) -> None:
    rows = kind_rows(plugin_host(), kind)
    assert rows == sorted(rows, key=lambda row: row["name"])
    json.dumps(rows)
    if kind.attribute in ("ops", "passes", "quant_formats", "commands", "checks"):
        assert rows and all(row["plugin"] == "core" for row in rows)


@pytest.mark.parametrize("spelt", ["quant_formats", "quant-format"])
def test_list_of_a_kind(spelt: str, cacheir: Run) -> None:
    done = cacheir("plugins", "list", "--kind", spelt, "--json")
    assert done.returncode == 0, done.stderr
    assert {"name", "plugin", "bits_per_weight", "summary"} == set(json.loads(done.stdout)["quant_formats"][0])
    first, *rows = cacheir("plugins", "list", "--kind", spelt).stdout.splitlines()
    assert first.split() == ["NAME", "PLUGIN", "BITS", "PER", "WEIGHT", "SUMMARY"]
    assert ["q4_0", "core", "4.5"] in [row.split()[:3] for row in rows]


def test_an_unknown_kind(cacheir: Run) -> None:
    done = cacheir("plugins", "list", "--kind", "things")
    assert done.returncode == 2 and "there is no kind 'things'" in done.stderr and "passes" in done.stderr


def test_hooks(cacheir: Run) -> None:
    lines = cacheir("plugins", "hooks").stdout.splitlines()
    assert lines[0].split() == ["HOOK", "ARGUMENTS", "LEVEL", "SINCE", "IMPLEMENTED", "BY"]
    assert [line.split()[0] for line in lines[1:]] == list(hook_specs())
    (select,) = [line for line in lines if line.startswith("cacheir_select_kernel")]
    assert "op, candidates, target, mode" in select and "provisional" in select
    (passes,) = [line for line in lines if line.startswith("cacheir_register_passes")]
    assert passes.split()[1:] == ["stable", "1.0", "core"]


def test_hooks_as_json(cacheir: Run, write: Write) -> None:
    write(
        "watcher",
        """
        from cacheir.plugins import hookimpl

        @hookimpl
        def cacheir_pass_done(record):
            pass
        """,
    )
    found = {
        row["name"]: row for row in json.loads(cacheir("plugins", "hooks", "--json", plugins="watcher").stdout)["hooks"]
    }
    assert found["cacheir_pass_done"]["implementers"] == ["watcher"]
    assert found["cacheir_pass_done"]["arguments"] == ["record", "graph"]
    assert found["cacheir_pass_done"]["level"] == "stable" and found["cacheir_pass_done"]["since"] == "1.0"


def test_doctor_as_json(cacheir: Run, write: Write) -> None:
    write("faulty", "1 / 0")
    done = cacheir("plugins", "doctor", "faulty", "--json", plugins="faulty")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["problems"] == 1
    (finding,) = found["sections"][0]["findings"]
    assert finding["status"] == "FAIL" and "ZeroDivisionError" in finding["text"] and "Traceback" in finding["detail"]


def test_doctor_of_core(cacheir: Run) -> None:
    done = cacheir("plugins", "doctor", "core")
    assert done.returncode == 0, done.stdout
    assert "references resolve" in done.stdout and "pass-order: " in done.stdout and "kernel-ops: " in done.stdout
    assert done.stdout.endswith("0 problems.\n")


def test_new(cacheir: Run, tmp_path: Path) -> None:
    done = cacheir("plugins", "new", "command", "say-hello", "--in", str(tmp_path / "here"))
    made = tmp_path / "here" / "cacheir-say-hello"
    assert done.returncode == 0 and (made / "src" / "cacheir_say_hello.py").is_file()
    assert f"pytest {made}/tests" in done.stdout
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(made / "src"), *(path for path in sys.path if path)]),
        "CACHEIR_PLUGIN_MODULES": "say-hello=cacheir_say_hello",
        "CACHEIR_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "cacheir.cli.main", "say-hello"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith(" passes\n"), done.stderr
    done = cacheir("plugins", "new", "comand", "say-hello")
    assert done.returncode == 2 and "did you mean 'command'?" in done.stderr


def test_without_a_subcommand(cacheir: Run) -> None:
    done = cacheir("plugins")
    for name in ("list", "doctor", "hooks", "new", "ledger"):
        assert f"  {name} " in done.stdout + done.stderr
