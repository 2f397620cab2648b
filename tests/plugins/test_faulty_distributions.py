"""Bug report CIR-E01: a broken entry point takes nothing down. Real distributions, the real command.

Each fault costs its plugin alone, is named on stderr exactly once by every command, leaves standard output clean, and
is explained by ``cacheir plugins doctor``.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Install = Callable[..., Path]

GOOD = """
    from cacheir.plugins import CommandSpec, hookimpl

    @hookimpl
    def cacheir_register_commands():
        yield CommandSpec(name="good", help="Be good.", app="cacheir_good:good")

    def good():
        print("still here")
"""

# name -> (module source or None, what the line on stderr says, what doctor says)
FAULTS: dict[str, tuple[str | None, str, str]] = {
    "names-a-missing-module": (
        None,
        "left out: ModuleNotFoundError: No module named 'cacheir_faulty'",
        "FAIL  ModuleNotFoundError",
    ),
    "raises-import-error": (
        "raise ImportError('libfoo.so.1: cannot open shared object file')",
        "left out: ImportError: libfoo.so.1: cannot open shared object file",
        "at site/cacheir_faulty.py:1",
    ),
    "calls-sys-exit": ("import sys\nsys.exit(3)", "left out: called sys.exit(3)", "at site/cacheir_faulty.py:2"),
    "raises-an-interrupt": (
        "class Halt(KeyboardInterrupt):\n    pass\nraise Halt('stop')",
        "left out: Halt: stop",
        "at site/cacheir_faulty.py:3",
    ),
    "prints": ("print('hello from a plugin')", "printed 'hello from a plugin' on standard output", "must not print"),
    "misspells-a-hook": (
        "from cacheir.plugins import hookimpl\n@hookimpl\ndef cacheir_register_pases():\n    return []",
        "left out: there is no hook 'cacheir_register_pases'; did you mean 'cacheir_register_passes'?",
        "FAIL  there is no hook",
    ),
    "asks-for-an-argument": (
        "from cacheir.plugins import hookimpl\n@hookimpl\ndef cacheir_register_passes(manager):\n    return []",
        "left out: cacheir_register_passes asks for 'manager'",
        "FAIL  cacheir_register_passes asks for 'manager'",
    ),
    "newer-hook-api": (
        "CACHEIR_HOOK_API = (7, 3)",
        "left out: written for hook API 7.3; this core has",
        "install a newer cacheir-core",
    ),
    "raises-half-way": (
        """
        from cacheir.plugins import CommandSpec, hookimpl

        @hookimpl
        def cacheir_register_commands():
            yield CommandSpec(name="half", help="The first half.", app="cacheir_faulty:half")
            raise LookupError("no further")

        def half():
            pass
        """,
        "cacheir_register_commands raised LookupError: no further",
        "at site/cacheir_faulty.py:7",
    ),
    "clashes": (
        """
        from cacheir.plugins import CommandSpec, hookimpl

        @hookimpl
        def cacheir_register_commands():
            yield CommandSpec(name="plugins", help="Not yours.", app="cacheir_faulty:mine")
        """,
        "command 'plugins' is left out: plugin 'core' (cacheir-core",
        "set CACHEIR_BLOCK_PLUGINS=faulty",
    ),
}


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, install: Install) -> tuple[str, str, str]:
    """A faulty distribution, installed beside a good one: its name, the line, the doctor's words."""
    source, line, doctor = FAULTS[request.param]
    install("cacheir-faulty", "9.9", source)
    install("cacheir-good", "1.0", GOOD)
    return request.param, line, doctor


def lines_about(plugin: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if f"plugin '{plugin}'" in line]


def test_it_costs_itself_alone(fault: tuple[str, str, str], cacheir: Run) -> None:
    """Cold help, warm help, a command of another plugin, JSON: all work, and name the culprit once."""
    _, says, _ = fault
    for arguments in (("--help",), ("--help",), ("good",), ("plugins", "list", "--json")):
        done = cacheir(*arguments)
        assert done.returncode == 0, done.stderr
        (line,) = lines_about("faulty", done)
        assert line.startswith("cacheir: plugin 'faulty' (cacheir-faulty 9.9)")
        assert says in line and line.endswith("[cacheir plugins doctor faulty]")
        assert "\nhello" not in "\n" + done.stdout
        assert "Traceback" not in done.stderr
        if arguments == ("--help",):
            assert "Be good." in done.stdout
        if arguments == ("good",):
            assert done.stdout == "still here\n"
    rows = {row["name"]: row for row in json.loads(done.stdout)["plugins"]}
    assert (rows["faulty"]["package"], rows["faulty"]["version"]) == ("cacheir-faulty", "9.9")
    assert any(says.removeprefix("left out: ") in problem for problem in rows["faulty"]["problems"])
    assert rows["core"]["state"] == rows["good"]["state"] == "loaded"


def test_doctor_explains_it(fault: tuple[str, str, str], cacheir: Run) -> None:
    _, _, words = fault
    done = cacheir("plugins", "doctor", "faulty")
    assert done.returncode == 1
    assert done.stdout.startswith("faulty 9.9\n")
    assert words in done.stdout and "1 problem." in done.stdout


def test_strict_mode_makes_it_an_error(fault: tuple[str, str, str], cacheir: Run) -> None:
    _, says, _ = fault
    done = cacheir("--help", CACHEIR_STRICT_PLUGINS="1")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("error: plugin 'faulty' (cacheir-faulty 9.9)")
    assert says.removeprefix("left out: ") in done.stderr
    assert "hint: " in done.stderr


def test_it_can_be_left_out(fault: tuple[str, str, str], cacheir: Run) -> None:
    done = cacheir("plugins", "list", "--json", CACHEIR_BLOCK_PLUGINS="faulty", CACHEIR_STRICT_PLUGINS="1")
    assert done.returncode == 0 and not done.stderr
    states = {row["name"]: row["state"] for row in json.loads(done.stdout)["plugins"]}
    assert states["faulty"] == "blocked" and states["good"] == "loaded"


def test_half_of_a_hook_is_kept(install: Install, cacheir: Run) -> None:
    install("cacheir-faulty", "9.9", FAULTS["raises-half-way"][0])
    assert "The first half." in cacheir("--help").stdout


def test_two_plugins_that_clash(install: Install, cacheir: Run) -> None:
    source = """
        from cacheir.plugins import CommandSpec, hookimpl

        @hookimpl
        def cacheir_register_commands():
            yield CommandSpec(name="shared", help=f"By {__name__}.", app=f"{__name__}:run")
            yield CommandSpec(name=__name__.replace("_", "-"), help="Alone.", app=f"{__name__}:run")

        def run():
            print(__name__)
    """
    install("cacheir-alpha", "1", source)
    install("cacheir-beta", "2", source)
    done = cacheir("--help")
    assert "By cacheir_alpha." in done.stdout and "By cacheir_beta." not in done.stdout
    assert done.stdout.count("Alone.") == 2
    (line,) = lines_about("beta", done)
    assert "command 'shared' is left out: plugin 'alpha' (cacheir-alpha 1)" in line
    assert cacheir("shared").stdout == "cacheir_alpha\n"
    assert cacheir("cacheir-beta").stdout == "cacheir_beta\n"
    assert cacheir("shared", CACHEIR_BLOCK_PLUGINS="alpha").stdout == "cacheir_beta\n"


def test_two_distributions_with_one_plugin_name(install: Install, cacheir: Run) -> None:
    install("cacheir-good", "1.0", GOOD)
    install("good", "3.0", "raise RuntimeError('never imported')", module="other_good")
    done = cacheir("plugins", "list")
    assert done.returncode == 0
    assert "the name 'good' is taken by cacheir-good 1.0" in done.stderr
    assert cacheir("good").stdout == "still here\n"


def test_a_plugin_that_takes_three_seconds(install: Install, cacheir: Run, site: Path) -> None:
    began, marker = site / "began", site / "imported"
    source = f"""
        import time
        open({str(began)!r}, "a").write("x")
        time.sleep(3)
        open({str(marker)!r}, "a").write("x")
    """
    install("cacheir-slow", "1.0", source)
    install("cacheir-good", "1.0", GOOD)
    for _ in range(2):
        done = cacheir("--help")
        assert "Be good." in done.stdout
        assert len(lines_about("slow", done)) == 1
    assert not marker.exists(), "help waited for it"
    assert began.read_text() == "x", "the second help imported it again"
    done = cacheir("plugins", "list")
    assert done.returncode == 0 and marker.exists()
    assert len(lines_about("slow", done)) == 1
    done = cacheir("plugins", "doctor", "slow")
    (line,) = lines_about("slow", done)
    (seconds,) = re.findall(r"took ([0-9.]+) s to import, and every command waits for it", line)
    assert float(seconds) >= 3
    assert f"note  took {seconds} s" in done.stdout and done.returncode == 0


def test_help_imports_no_plugin_once_it_is_known(install: Install, cacheir: Run, site: Path) -> None:
    marker = site / "imported"
    source = GOOD.replace("    from", f"    open({str(marker)!r}, 'a').write('x')\n    from", 1)
    module = install("cacheir-good", "1.0", source)
    assert "Be good." in cacheir("--help").stdout
    assert marker.read_text() == "x"
    assert "Be good." in cacheir("--help").stdout
    assert marker.read_text() == "x", "the second help imported the plugin"
    module.write_text(module.read_text().replace("Be good.", "Be better."))
    assert "Be better." in cacheir("--help").stdout, "an edit is not noticed"
    assert marker.read_text() == "xx"
    install("cacheir-another", "1.0", GOOD.replace('"good"', '"another"').replace("cacheir_good", "cacheir_another"))
    assert "another" in cacheir("--help").stdout, "a new distribution is not noticed"


def test_an_allow_list_with_a_name_that_is_none(install: Install, cacheir: Run) -> None:
    install("cacheir-good", "1.0", GOOD)
    done = cacheir("plugins", "list", CACHEIR_PLUGINS="goood")
    assert done.returncode == 2
    assert "CACHEIR_PLUGINS names 'goood', and no such plugin is installed; did you mean 'good'?" in done.stderr


def test_an_allow_list(install: Install, cacheir: Run) -> None:
    install("cacheir-faulty", "9.9", "1 / 0")
    install("cacheir-good", "1.0", GOOD)
    done = cacheir("good", CACHEIR_PLUGINS="good", CACHEIR_STRICT_PLUGINS="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "still here\n", "")


def test_a_module_from_a_bare_checkout(install: Install, cacheir: Run, site: Path) -> None:
    (site / "checkout.py").write_text("from cacheir_good import *\n")
    install("cacheir-good", "1.0", GOOD).rename(site / "cacheir_good.py")
    (site / "cacheir_good-1.0.dist-info" / "entry_points.txt").unlink()
    assert cacheir("good").returncode == 2
    assert cacheir("good", CACHEIR_PLUGIN_MODULES="mine=checkout").stdout == "still here\n"
    listed = json.loads(cacheir("plugins", "list", "--json", CACHEIR_PLUGIN_MODULES="mine=checkout").stdout)
    assert "mine" in {row["name"] for row in listed["plugins"]}


def test_all_at_once(install: Install, cacheir: Run) -> None:
    """Ten faulty plugins side by side: ten lines, and a command that works."""
    for name, (source, _, _) in FAULTS.items():
        if name not in ("names-a-missing-module", "clashes"):
            install(f"cacheir-{name}", "1", source)
    install("cacheir-good", "1.0", GOOD)
    done = cacheir("good")
    assert done.returncode == 0 and done.stdout == "still here\n"
    done = cacheir("plugins", "list")
    assert done.returncode == 0
    for name in FAULTS:
        if name not in ("names-a-missing-module", "clashes"):
            assert len(lines_about(name, done)) == 1, name
