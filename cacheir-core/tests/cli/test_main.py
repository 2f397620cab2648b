"""The command as a whole: help, version, unknown commands, exit codes, interrupts, broken pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir import __version__
from cacheir.cli.main import run as run_in_process

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[[str, str], None]

COMMANDS = """
    from cacheir.plugins import CommandSpec, hookimpl

    @hookimpl
    def cacheir_register_commands():
        for name in ("speak", "refuse", "break", "leave", "wait", "flood", "number", "nothing"):
            yield CommandSpec(name=name, help=f"Do {name}.", app=f"speaker:{name.replace('break', 'break_')}")
"""

FUNCTIONS = """
    import sys, time

    def speak(name: str = "you"):
        print(f"hello {name}")

    def refuse():
        from cacheir.errors import UnsupportedModelError
        raise UnsupportedModelError("the model 'x' has 3 heads", hint="use 'y'")

    def break_():
        {}["missing"]

    def leave():
        sys.exit(7)

    def wait():
        print("waiting", flush=True)
        time.sleep(60)

    def flood():
        for number in range(100_000):
            print("line", number)

    def number() -> int:
        return 5

    nothing = 3
"""


@pytest.fixture
def speaker(write: Write, cacheir: Run) -> Run:
    write("commands", COMMANDS)
    write("speaker", FUNCTIONS)
    return lambda *arguments, **variables: cacheir(*arguments, plugins="commands", **variables)


def test_help_lists_commands_by_group(speaker: Run) -> None:
    done = speaker("--help")
    assert done.returncode == 0 and not done.stderr
    core, others = done.stdout.split("\nCACHEIR_PLUGIN_MODULES:\n")
    assert "An inspectable compiler and runtime" in core and "CacheIR:" in core
    for name in (
        "compile",
        "inspect",
        "passes",
        "run",
        "chat",
        "models",
        "profile",
        "benchmark",
        "plugins",
        "verify",
        "cache",
    ):
        assert f"\n  {name} " in core
    assert "\n  speak    Do speak.\n" in "\n" + others


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_ways_to_ask_for_help(arguments: tuple[str, ...], cacheir: Run) -> None:
    done = cacheir(*arguments)
    assert done.returncode == 0 and done.stdout.startswith("Usage: cacheir")


def test_version(cacheir: Run) -> None:
    done = cacheir("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cacheir {__version__}\n", "")


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "cacheir", "--version"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"cacheir {__version__}\n"


def test_a_command_of_a_plugin_runs(speaker: Run) -> None:
    assert speaker("speak").stdout == "hello you\n"
    assert speaker("speak", "--name", "world").stdout == "hello world\n"
    help_page = speaker("speak", "--help")
    assert help_page.returncode == 0 and "Do speak." in help_page.stdout and "--name" in help_page.stdout


def test_an_error_is_a_line_a_hint_and_a_code(speaker: Run) -> None:
    done = speaker("refuse")
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr == "error: the model 'x' has 3 heads\nhint: use 'y'\n"


def test_debug_adds_the_traceback(speaker: Run) -> None:
    for arguments in (("--debug", "refuse"), ("refuse", "--debug")):
        done = speaker(*arguments)
        assert done.returncode == 4
        assert "Traceback" in done.stderr and "in refuse" in done.stderr
        assert done.stderr.endswith("error: the model 'x' has 3 heads\nhint: use 'y'\n")


def test_a_fault_of_the_program(speaker: Run) -> None:
    done = speaker("break")
    assert done.returncode == 1
    assert done.stderr.startswith("error: KeyError: 'missing'\nhint: ") and "Traceback" not in done.stderr
    assert "in break_" in speaker("break", "--debug").stderr


def test_codes_of_commands(speaker: Run) -> None:
    assert speaker("leave").returncode == 7
    assert speaker("number").returncode == 5


def test_a_command_that_is_none(speaker: Run) -> None:
    done = speaker("nothing")
    assert done.returncode == 3
    assert "command 'nothing' of plugin 'commands': speaker:nothing is a int" in done.stderr


def test_an_unknown_option(speaker: Run) -> None:
    for arguments in (("--bad",), ("speak", "--bad"), ("plugins", "list", "--bad")):
        done = speaker(*arguments)
        assert done.returncode == 2 and "--bad" in done.stderr and done.stdout == ""


def test_an_unknown_command(cacheir: Run) -> None:
    done = cacheir("pluggins")
    assert done.returncode == 2
    assert done.stderr == "error: there is no command 'pluggins'\nhint: did you mean 'plugins'?\n"


@pytest.mark.parametrize("name, package", [("serve", "cacheir-server"), ("make-tiny", "cacheir-importers")])
def test_a_command_of_a_package_that_is_not_here(name: str, package: str, cacheir: Run) -> None:
    done = cacheir(name)
    assert done.returncode == 2
    assert f"error: there is no command '{name}'" in done.stderr
    assert f"hint: it is in {package}" in done.stderr
    assert "pip install cacheir" not in done.stderr


def test_control_c(speaker: Run, tmp_path: Path, modules: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(modules), *(path for path in sys.path if path)]),
        "CACHEIR_CACHE_DIR": str(tmp_path / "cache"),
        "CACHEIR_PLUGIN_MODULES": "commands",
    }
    command = [sys.executable, "-m", "cacheir.cli.main", "wait"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "interrupted"


def test_a_reader_that_goes_away(speaker: Run, tmp_path: Path, modules: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(modules), *(path for path in sys.path if path)]),
        "CACHEIR_CACHE_DIR": str(tmp_path / "cache"),
        "CACHEIR_PLUGIN_MODULES": "commands",
    }
    command = [sys.executable, "-m", "cacheir.cli.main", "flood"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 141
    assert err == ""


def test_help_with_standard_output_closed(cacheir: Run, tmp_path: Path) -> None:
    command = f"{sys.executable} -m cacheir.cli.main --version >&-"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize(
    ("redirection", "code", "shown"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, "hello you\n"),  # a line of standard error must not turn up on standard output
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 1, "error: the system refused: No space left on device\n"),
    ],
)
def test_streams_that_are_closed_or_full(
    redirection: str, code: int, shown: str, speaker: Run, write: Write, tmp_path: Path, modules: Path
) -> None:
    write(
        "speaker",
        """
        import sys

        def speak(name: str = "you"):
            sys.stdout.write(f"hello {name}\\n")
            sys.stdout.flush()
            print("progress", file=sys.stderr)
        """,
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(modules), *(path for path in sys.path if path)]),
        "CACHEIR_CACHE_DIR": str(tmp_path / "cache"),
        "CACHEIR_PLUGIN_MODULES": "commands",
        "CACHEIR_PLUGINS": "core,commands",
    }
    command = ["sh", "-c", f'exec "$0" -m cacheir.cli.main speak {redirection}', sys.executable]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "fault" not in done.stderr
    assert (done.stdout or done.stderr.split("hint:")[0] if code else done.stdout) == shown


def test_a_bad_variable(cacheir: Run) -> None:
    done = cacheir("plugins", "list", CACHEIR_STRICT_PLUGINS="perhaps")
    assert done.returncode == 2
    assert done.stderr.startswith("error: CACHEIR_STRICT_PLUGINS must be 1 or 0")
    done = cacheir("--help", CACHEIR_CACHE_DIR="relative")
    assert done.returncode == 2 and "CACHEIR_CACHE_DIR must be an absolute path" in done.stderr


def test_help_with_a_warm_cache_imports_no_plugin(speaker: Run, write: Write, tmp_path: Path) -> None:
    assert "Do speak." in speaker("--help").stdout
    trace = speaker("--help", PYTHONPROFILEIMPORTTIME="1").stderr
    for name in ("commands", "speaker", "cacheir.builtin", "pluggy", "cacheir.plugins.host", "cacheir.plugins.specs"):
        assert f" {name}\n" not in trace, f"{name} was imported"
    # An edit is noticed.
    write("commands", COMMANDS.replace("Do {name}.", "Now do {name}."))
    assert "Now do speak." in speaker("--help").stdout


def test_a_broken_cache_file_is_rebuilt(speaker: Run, tmp_path: Path) -> None:
    first = speaker("--help").stdout
    (path,) = (tmp_path / "cache" / "commands").iterdir()
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert speaker("--help").stdout == first
    assert path.read_text() == whole


def test_help_where_nothing_can_be_cached(speaker: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = speaker("--help", CACHEIR_CACHE_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 0 and "Do speak." in done.stdout and not done.stderr


def test_a_slow_plugin_does_not_hold_help_up(cacheir: Run, write: Write) -> None:
    write("sleeper", "import time\ntime.sleep(600)\n" + COMMANDS.replace("\n    ", "\n"))
    done = cacheir("--help", plugins="sleeper")  # which is ended long before 600 s
    assert done.returncode == 0
    assert done.stderr.count("'sleeper'") == 1 and "took longer than 1 s to import" in done.stderr
    assert "CacheIR:" in done.stdout and "Do speak." not in done.stdout


def test_a_command_of_a_slow_plugin_is_found_all_the_same(cacheir: Run, write: Write) -> None:
    """It sleeps until it is cut off where nobody waits for it, and just long enough to be named where one does."""
    write("sleeper", 'import os, time\ntime.sleep(float(os.environ["NAP"]))\n' + COMMANDS.replace("\n    ", "\n"))
    write("speaker", FUNCTIONS)
    assert "Do speak." not in cacheir("--help", plugins="sleeper", NAP="100").stdout
    done = cacheir("speak", plugins="sleeper", NAP="1.1")
    assert done.stdout == "hello you\n"
    assert done.stderr.count("'sleeper'") == 1
    done = cacheir("--help", plugins="sleeper", NAP="100")
    assert "Do speak." in done.stdout, "what it said is kept once it was waited for"
    assert done.stderr.count("'sleeper'") == 1


def test_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_in_process(["--version"]) == 0
    assert capsys.readouterr().out == f"cacheir {__version__}\n"
