"""Faults of plugins, one by one: each costs itself alone, is reported once, and leaves core whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cacheir.errors import PluginError, PluginLoadError
from cacheir.plugins.host import Host, HostOptions, discover, report_line
from cacheir.plugins.installation import Installation

Make = Callable[..., Installation]
Write = Callable[..., str]

GOOD = """
    from cacheir.plugins import CommandSpec, hookimpl

    @hookimpl
    def cacheir_register_commands():
        yield CommandSpec(name="good", help="Be good.", app="good:app")
"""

# source -> state of the plugin, words of the report
FAULTS = {
    "missing_import": ("import not_there_at_all", "failed", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    "raises": ("raise RuntimeError('no luck')", "failed", "RuntimeError: no luck"),
    "exits": ("import sys; sys.exit(3)", "failed", "called sys.exit(3)"),
    "interrupts": (
        "class Stop(KeyboardInterrupt): pass\nraise Stop('now')",
        "failed",
        "Stop: now",
    ),
    "plain_interrupt": ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
    "base_exception": ("class Odd(BaseException): pass\nraise Odd('odd')", "failed", "Odd: odd"),
    "no_text": (
        "class Mute(Exception):\n    def __str__(self): raise LookupError\nraise Mute",
        "failed",
        "Mute: its text cannot be had: LookupError",
    ),
    "no_python": ("def broken(:", "failed", "SyntaxError"),
    "misspelt": (
        "from cacheir.plugins import hookimpl\n@hookimpl\ndef cacheir_register_pases(): return []",
        "failed",
        "there is no hook 'cacheir_register_pases'; did you mean 'cacheir_register_passes'?",
    ),
    "wrong_argument": (
        "from cacheir.plugins import hookimpl\n@hookimpl\ndef cacheir_pass_done(report): pass",
        "failed",
        "cacheir_pass_done asks for 'report', and is called with record, graph",
    ),
    "argument_where_none_is": (
        "from cacheir.plugins import hookimpl\n@hookimpl\ndef cacheir_register_ops(registry): pass",
        "failed",
        "cacheir_register_ops asks for 'registry', and is called without arguments",
    ),
    "unmarked": ("def cacheir_register_passes(): return []", "failed", "is not marked with @hookimpl"),
    "wrapper": (
        "from cacheir.plugins import hookimpl\n@hookimpl(wrapper=True)\ndef cacheir_register_ops(): yield",
        "failed",
        "cannot be wrapped",
    ),
    "newer": ("CACHEIR_HOOK_API = (1, 999)", "incompatible", "written for hook API 1.999; this core has"),
    "other_major": ("CACHEIR_HOOK_API = (2, 0)", "incompatible", "written for hook API 2.0; this core has"),
    "older_major": ("CACHEIR_HOOK_API = (0, 9)", "incompatible", "written for hook API 0.9; this core has"),
    "odd_version": ("CACHEIR_HOOK_API = '1.0'", "failed", "must be a pair of numbers"),
}


def plugin_of(installation: Installation, name: str) -> Any:
    return next(plugin for plugin in installation.plugins if plugin.name == name)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_its_plugin_alone(name: str, write_module: Write, installed: Make, reports: Any) -> None:
    source, state, says = FAULTS[name]
    installation = installed(write_module("faulty", source), write_module("good", GOOD))
    assert installation.commands["good"].help == "Be good."
    assert "plugins" in installation.commands
    assert plugin_of(installation, "faulty").state == state
    assert [plugin for plugin, _ in reports] == ["faulty"]
    assert says in reports[0][1]


@pytest.mark.parametrize("name", FAULTS)
def test_strict_mode_makes_it_an_error(name: str, write_module: Write, installed: Make) -> None:
    source, _, says = FAULTS[name]
    installation = installed(write_module("faulty", source), strict=True)
    with pytest.raises(PluginLoadError) as caught:
        installation.plugins  # noqa: B018
    assert says in str(caught.value) and "'faulty'" in str(caught.value)
    assert caught.value.exit_code == 3


HALF_WAY = """
    from cacheir.plugins import CommandSpec, SamplerSpec, hookimpl

    @hookimpl
    def cacheir_register_commands():
        yield CommandSpec(name="first", help="", app="faulty:app")
        raise LookupError("and no further")

    @hookimpl
    def cacheir_register_samplers():
        return [SamplerSpec(name="whole", summary="", factory="faulty:make")]
"""


def test_a_register_hook_that_raises_half_way(write_module: Write, installed: Make, reports: Any) -> None:
    installation = installed(write_module("faulty", HALF_WAY))
    assert "first" in installation.commands
    assert "plugins" in installation.commands
    assert "whole" in installation.samplers
    assert plugin_of(installation, "faulty").state == "failed"
    assert reports == [("faulty", "cacheir_register_commands raised LookupError: and no further")]


@pytest.mark.parametrize(
    "body, says",
    [
        ("return None", "gave NoneType; return a list"),
        ("return 'abc'", "gave str; return a list"),
        ("return CommandSpec(name='one', help='', app='a:b')", "gave CommandSpec; return a list"),
        ("return [SamplerSpec(name='it', summary='', factory='a:b')]", "SamplerSpec where CommandSpec is asked for"),
        ("return [CommandSpec(name='It', help='', app='a:b')]", "raised ValueError: CommandSpec"),
        ("import sys; sys.exit('bye')", "called sys.exit('bye')"),
    ],
)
def test_a_register_hook_that_gives_the_wrong_thing(
    body: str, says: str, write_module: Write, installed: Make, reports: Any
) -> None:
    head = "from cacheir.plugins import *\n@hookimpl\ndef cacheir_register_commands():\n    "
    installation = installed(write_module("faulty", head + body))
    assert "plugins" in installation.commands
    assert len(reports) == 1 and says in reports[0][1]


def test_two_hooks_that_raise_are_reported_once(write_module: Write, installed: Make, reports: Any) -> None:
    source = """
        from cacheir.plugins import hookimpl

        @hookimpl
        def cacheir_register_passes():
            raise ValueError("first")

        @hookimpl
        def cacheir_register_samplers():
            raise ValueError("second")
    """
    installation = installed(write_module("faulty", source))
    assert not installation.samplers.where(lambda spec: True)
    installation.passes.names()
    assert len(reports) == 1
    assert len(plugin_of(installation, "faulty").problems) == 2


def test_an_observer_that_raises_is_passed_over(write_module: Write, installed: Make, reports: Any) -> None:
    observer = """
        from cacheir.plugins import hookimpl

        seen = []

        @hookimpl
        def cacheir_request_done(stats):
            seen.append(stats)
            {body}
    """
    first = write_module("a_bad_one", observer.format(body="raise ValueError('cannot look')"))
    installation = installed(first, write_module("b_good_one", observer.format(body="pass")))
    installation.observe("cacheir_request_done", stats=1)
    installation.observe("cacheir_request_done", stats=2)
    import b_good_one  # type: ignore[import-not-found]

    assert b_good_one.seen == [1, 2]
    assert reports == [("a_bad_one", "cacheir_request_done raised ValueError: cannot look")]


def test_an_observer_that_always_raises_is_noted_once(write_module: Write, installed: Make, reports: Any) -> None:
    source = """
        from cacheir.plugins import hookimpl

        @hookimpl
        def cacheir_request_done(stats):
            raise ValueError("always")
    """
    installation = installed(write_module("faulty", source))
    for _ in range(3):
        installation.observe("cacheir_request_done", stats=None)
    assert len(reports) == 1
    assert len(plugin_of(installation, "faulty").problems) == 1


def test_an_observer_in_another_thread_leaves_standard_output_alone(
    write_module: Write, installed: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
        from cacheir.plugins import hookimpl

        @hookimpl
        def cacheir_request_done(stats):
            stats.wait(30)
    """
    installation = installed(write_module("waiting", source), keep_stdout_clean=True)
    installation.plugins  # noqa: B018
    done = threading.Event()
    thread = threading.Thread(target=lambda: installation.observe("cacheir_request_done", stats=done))
    thread.start()
    print("a token")
    done.set()
    thread.join(30)
    assert capsys.readouterr().out == "a token\n"


def test_a_selector_that_chooses_something_else_is_an_error(write_module: Write, installed: Make) -> None:
    source = """
        from cacheir.plugins import KernelChoice, KernelSpec, hookimpl

        @hookimpl
        def cacheir_select_kernel(op):
            return KernelChoice(kernel=KernelSpec(name="mine", op="add", target="toy", entry="a:b"), reason="mine")
    """
    installation = installed(write_module("faulty", source))
    op: Any = type("Op", (), {"name": "add"})()
    with pytest.raises(PluginError, match="none of the candidates"):
        installation.select_kernel(op, (), "toy", "decode")


def test_a_plugin_may_not_ask_for_registries_while_it_is_imported(
    write_module: Write, installed: Make, reports: Any
) -> None:
    source = """
        import builtins
        len(builtins.the_installation_under_test.passes)
    """
    import builtins

    installation = installed(write_module("faulty", source))
    builtins.the_installation_under_test = installation  # type: ignore[attr-defined]
    try:
        assert "plugins" in installation.commands
    finally:
        del builtins.the_installation_under_test  # type: ignore[attr-defined]
    assert "while it was being imported" in reports[0][1]


def test_finding_imports_nothing(write_module: Write) -> None:
    module = write_module("never_imported", "raise SystemExit(1)")
    found = discover(HostOptions(modules=(module,), points=()))
    assert found[module].state == "found"
    assert module not in sys.modules


def test_a_pressed_ctrl_c_is_not_a_plugins_fault(write_module: Write, installed: Make) -> None:
    source = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(10)"
    installation = installed(write_module("faulty", source))
    with pytest.raises(KeyboardInterrupt):
        installation.plugins  # noqa: B018
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_plugins_load_in_another_thread(write_module: Write, installed: Make) -> None:
    installation = installed(write_module("faulty", "raise KeyboardInterrupt"), write_module("good", GOOD))
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.extend(installation.commands.names()))
    thread.start()
    thread.join(30)
    assert "good" in names


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs SIGALRM to cut an import off")
def test_a_slow_plugin_is_cut_off_where_there_is_a_limit(write_module: Write, installed: Make, reports: Any) -> None:
    # It rings the alarm that is set for it, so that the limit can be one that no other plugin comes near.
    source = """
        import signal, time
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert 0 < left <= 30
        time.sleep(60)
    """
    installation = installed(write_module("sleeper", source), write_module("good", GOOD), seconds_each=30)
    assert "good" in installation.commands
    assert plugin_of(installation, "sleeper").state == "slow"
    assert reports == [("sleeper", "took longer than 30 s to import")]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_slow_plugin_works_and_is_named(
    write_module: Write, installed: Make, reports: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cacheir.plugins.host.SLOW_SECONDS", 0.0)
    installation = installed(write_module("good", "import time\ntime.sleep(0.2)\n" + GOOD.replace("\n    ", "\n")))
    assert "good" in installation.commands
    ((name, sentence),) = reports  # core's own import takes time too, and is nobody's to mend
    seconds, rest = sentence.removeprefix("took ").split(" ", 1)
    assert name == "good"
    assert float(seconds) >= 0.2 and rest == "s to import, and every command waits for it"


def test_what_a_plugin_prints_is_kept_from_standard_output(
    write_module: Write, installed: Make, reports: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    source = "import os\nprint('hello')\nos.write(1, b'raw')"
    installation = installed(write_module("chatty", source), keep_stdout_clean=True)
    assert "plugins" in installation.commands
    print("clean")
    out, err = capfd.readouterr()
    assert out == "clean\n"
    assert "raw" in err
    assert reports == [("chatty", "printed 'hello' on standard output")]


def test_a_plugin_that_closes_standard_output(
    write_module: Write, installed: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    installation = installed(write_module("closer", "import sys\nsys.stdout.close()"), keep_stdout_clean=True)
    assert "plugins" in installation.commands
    print("still here")
    assert capfd.readouterr().out == "still here\n"


def test_heavy_imports_are_noticed(write_module: Write, installed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module("pretend_torch", "")
    monkeypatch.setattr("cacheir.plugins.host.HEAVY", ("pretend_torch",))
    installation = installed(write_module("heavy", "import pretend_torch"))
    assert plugin_of(installation, "heavy").heavy == ("pretend_torch",)


def test_the_reported_line_is_one_line(write_module: Write, installed: Make) -> None:
    installation = installed(write_module("faulty", "raise ValueError('one\\ntwo\\nthree')"))
    plugin = plugin_of(installation, "faulty")
    line = report_line(plugin, plugin.problems[0].sentence)
    assert line == (
        "cacheir: plugin 'faulty' (CACHEIR_PLUGIN_MODULES) left out: ValueError: one two three"
        "  [cacheir plugins doctor faulty]"
    )


def test_an_attribute_of_a_module_can_be_a_plugin(write_module: Write, installed: Make) -> None:
    source = """
        from cacheir.plugins import CommandSpec, hookimpl

        class Plugin:
            @hookimpl
            def cacheir_register_commands(self):
                yield CommandSpec(name="from-object", help="", app="a:b")

        plugin = Plugin()
    """
    write_module("holder", source)
    assert "from-object" in installed("holder:plugin", strict=True).commands


def test_import_cacheir_imports_only_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import cacheir; new = set(sys.modules) - before;"
        "print(sorted(n for n in new if n.split('.')[0] not in {'cacheir', *sys.stdlib_module_names}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "[]"


def test_a_host_of_its_own_reports_on_stderr(write_module: Write, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(HostOptions(modules=(write_module("faulty", "1 / 0"),), points=()))
    host.load()
    host.load()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("'faulty'") == 1
