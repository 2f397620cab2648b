"""The doctor's findings: each fault is found, explained with a place and a hint, and nothing else is blamed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir.errors import UsageError
from cacheir.plugins.doctor import Finding, examine, failures, references
from cacheir.plugins.installation import Installation
from cacheir.plugins.inventory import plugin_rows
from cacheir.plugins.specs import BackendSpec, CommandSpec, KernelSpec

Make = Callable[..., Installation]
Write = Callable[..., str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "cache"))


def findings(installation: Installation, name: str) -> tuple[Finding, ...]:
    (section,) = examine(installation, name)
    return section.findings


def only_fault(installation: Installation, name: str) -> Finding:
    (fault,) = [finding for finding in findings(installation, name) if finding.status == "FAIL"]
    return fault


def test_a_sound_plugin(write_module: Write, installed: Make) -> None:
    source = """
        from cacheir.plugins import CheckResult, CheckSpec, SamplerSpec, hookimpl

        def make(params): ...

        def check():
            return CheckResult(ok=True, detail="a driver, version 3")

        @hookimpl
        def cacheir_register_samplers():
            yield SamplerSpec(name="toy", summary="", factory="sound:make")

        @hookimpl
        def cacheir_register_checks():
            yield CheckSpec(name="driver", run=check)
    """
    found = findings(installed(write_module("sound", source)), "sound")
    assert {finding.status for finding in found} == {"ok"}
    texts = [finding.text for finding in found]
    assert texts[0].endswith("imports nothing heavy")
    assert texts[1:] == ["1 reference resolves", "driver: a driver, version 3"]


def test_a_plugin_that_cannot_be_imported(write_module: Write, installed: Make) -> None:
    fault = only_fault(installed(write_module("faulty", "x = 1\nimport not_there\n")), "faulty")
    assert fault.text == "ModuleNotFoundError: No module named 'not_there'\nat modules/faulty.py:2"
    assert fault.hint == "update it, or leave it out with CACHEIR_BLOCK_PLUGINS=faulty"
    assert "Traceback" in fault.detail


def test_a_traceback_only_where_one_plugin_is_asked_for(write_module: Write, installed: Make) -> None:
    sections = examine(installed(write_module("faulty", "1 / 0")))
    assert all(not finding.detail for section in sections for finding in section.findings)
    assert any("ZeroDivisionError" in finding.text for section in sections for finding in section.findings)


def test_a_reference_to_nothing(write_module: Write, installed: Make) -> None:
    source = """
        from cacheir.plugins import SamplerSpec, hookimpl

        @hookimpl
        def cacheir_register_samplers():
            yield SamplerSpec(name="toy", summary="", factory="faulty:absent")
    """
    fault = only_fault(installed(write_module("faulty", source)), "faulty")
    assert fault.text.startswith("sampler 'toy' factory: faulty:absent cannot be loaded: AttributeError")


BACKEND = """
    from cacheir.plugins import BackendSpec, KernelSpec, hookimpl

    def probe():
        {probe}

    @hookimpl
    def cacheir_register_backends():
        yield BackendSpec(name="toy", summary="", targets=("toy.fast",), executor=probe, probe=probe)

    @hookimpl
    def cacheir_register_kernels():
        for name in ("toy.a", "toy.b"):
            yield KernelSpec(name=name, op="add", target="toy.fast", entry="needs_a_gpu:" + name[-1])
"""


def test_kernels_of_an_idle_backend_are_no_fault(write_module: Write, installed: Make) -> None:
    write_module("needs_a_gpu", "raise OSError('libtoy.so: cannot open')")
    installation = installed(write_module("toy", BACKEND.format(probe="return 'no toy here'")))
    found = findings(installation, "toy")
    assert not [finding for finding in found if finding.status == "FAIL"]
    assert [finding.text for finding in found if finding.status == "idle"] == [
        "2 references: no toy here",
        "backend toy: no toy here",
    ]
    (row,) = [row for row in plugin_rows(installation) if row.plugin.name == "toy"]
    assert row.provides_text() == "2 kernels, 1 backend (idle: no toy here)"


def test_kernels_of_a_working_backend_are(write_module: Write, installed: Make) -> None:
    write_module("needs_a_gpu", "raise OSError('libtoy.so: cannot open')")
    installation = installed(write_module("toy", BACKEND.format(probe="return None")))
    assert sum(finding.status == "FAIL" for finding in findings(installation, "toy")) == 2


def test_a_probe_that_raises_is_a_reason(write_module: Write, installed: Make) -> None:
    write_module("needs_a_gpu", "")
    installation = installed(write_module("toy", BACKEND.format(probe="raise OSError('odd')")))
    assert "backend toy: its probe raised OSError: odd" in [finding.text for finding in findings(installation, "toy")]


@pytest.mark.parametrize(
    ("targets", "notes"),
    [
        ((), []),
        (("toy", "toy.fast"), []),
        (("toy.fst",), [("pass 'tidy' is for 'toy.fst', and no backend has it", "did you mean 'toy.fast'?")]),
        (("toy", "abacus"), [("pass 'tidy' is for 'abacus', and no backend has it", "targets: cuda.one, toy.fast")]),
        (("cuda",), []),  # covers cuda.one, of a backend by another name
        (("cuda.on",), [("pass 'tidy' is for 'cuda.on', and no backend has it", "did you mean 'cuda.one'?")]),
    ],
)
def test_a_pass_for_a_target_that_nobody_has(
    write_module: Write, installed: Make, targets: tuple[str, ...], notes: list[tuple[str, str]]
) -> None:
    source = f"""
        from cacheir.plugins import BackendSpec, PassSpec, Stage, hookimpl

        def probe():
            return None

        @hookimpl
        def cacheir_register_backends():
            yield BackendSpec(name="toy.fast", summary="", targets=("cuda.one",), executor=probe, probe=probe)

        @hookimpl
        def cacheir_register_passes():
            yield PassSpec(name="tidy", run=probe, stage=Stage.TARGET, summary="", targets={targets!r})
    """
    found = findings(installed(write_module("tidy", source)), "tidy")
    assert [(finding.text, finding.hint) for finding in found if finding.status == "note"] == notes
    assert not [finding for finding in found if finding.status == "FAIL"]


CHECK = """
    from cacheir.plugins import CheckResult, CheckSpec, hookimpl

    def run():
        {body}

    @hookimpl
    def cacheir_register_checks():
        yield CheckSpec(name="driver", run=run)
"""


@pytest.mark.parametrize(
    "body, text, hint",
    [
        ("return CheckResult(ok=False, detail='too old', hint='update it')", "driver: too old", "update it"),
        ("raise OSError('odd')", "check driver raised OSError: odd", "the check itself is at fault"),
        ("raise SystemExit(1)", "check driver raised SystemExit: 1", "the check itself is at fault"),
        ("return True", "check driver gave bool, not a CheckResult", ""),
    ],
)
def test_a_check_that_fails(body: str, text: str, hint: str, write_module: Write, installed: Make) -> None:
    fault = only_fault(installed(write_module("checked", CHECK.format(body=body))), "checked")
    assert (fault.text, fault.hint) == (text, hint)


def test_a_check_of_what_is_absent_and_need_not_be_there(write_module: Write, installed: Make) -> None:
    body = "return CheckResult(ok=True, idle=True, detail='not installed', hint='install it')"
    found = findings(installed(write_module("checked", CHECK.format(body=body))), "checked")
    assert [(finding.status, finding.text, finding.hint) for finding in found if finding.status != "ok"] == [
        ("idle", "driver: not installed", "install it")
    ]
    assert failures(examine(installed(write_module("checked", CHECK.format(body=body))), "checked")) == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs SIGALRM to stop a check")
def test_a_check_that_hangs(write_module: Write, installed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cacheir.plugins.doctor.CHECK_SECONDS", 0.1)
    installation = installed(write_module("hanging", CHECK.format(body="import time; time.sleep(60)")))
    assert "took longer than 0.1 s" in only_fault(installation, "hanging").text


def test_a_clash_is_explained(write_module: Write, installed: Make) -> None:
    source = CHECK.format(body="return CheckResult(ok=True, detail='fine')")
    installation = installed(write_module("first", source), write_module("second", source))
    fault = only_fault(installation, "second")
    assert "check 'driver' is left out: plugin 'first'" in fault.text
    assert fault.hint == "set CACHEIR_BLOCK_PLUGINS=second or CACHEIR_BLOCK_PLUGINS=first to choose"
    assert not any(finding.text == "no name is registered twice" for finding in examine(installation)[-1].findings)


def test_requirements_of_a_distribution(tmp_path: Path, write_module: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from cacheir.plugins.distributions import entry_points
    from cacheir.plugins.distributions import installed as distributions
    from cacheir.plugins.host import Host, HostOptions

    site = tmp_path / "site"
    for name, version, requires in (
        ("toy-plugin", "1.0", ["toylib>=2", "absent-lib>=1", "other-lib>=3; extra == 'more'", "none; extra == 'more'"]),
        ("toylib", "1.0", []),
        ("other-lib", "2.0", []),
    ):
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{lines}")
    (site / "toy_plugin-1.0.dist-info" / "entry_points.txt").write_text("[cacheir]\ntoy = toy_plugin\n")
    monkeypatch.syspath_prepend(site)
    write_module("toy_plugin", CHECK.format(body="return CheckResult(ok=True, detail='fine')"))
    points = tuple(entry_points(distributions([str(site)])))
    found = findings(Installation(Host(HostOptions(points=points))), "toy")
    assert [(finding.status, finding.text, finding.hint) for finding in found if finding.status != "ok"] == [
        ("FAIL", "needs toylib>=2, found 1.0", "pip install 'toylib>=2'"),
        ("FAIL", "needs absent-lib>=1, which is not installed", "pip install 'absent-lib>=1'"),
        ("note", "extra 'more' needs other-lib>=3, found 2.0", "pip install 'other-lib>=3'"),
    ]


def test_the_environment(installed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_STRICT_PLUGIN", "1")
    monkeypatch.setenv("CACHEIR_OF_ANOTHER_PACKAGE", "1")
    section = examine(installed(block=("not-here",)))[-1]
    assert section.title == "environment"
    assert (
        Finding(
            "FAIL", "CACHEIR_STRICT_PLUGIN is set and no such variable is read", "did you mean CACHEIR_STRICT_PLUGINS?"
        )
        in section.findings
    )
    assert not any("ANOTHER" in finding.text for finding in section.findings)
    assert any("names 'not-here'" in finding.text for finding in section.findings)


def test_a_cache_folder_that_cannot_be_written(
    installed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "file" / "below"))
    fault = examine(installed())[-1].findings[-1]
    assert fault.status == "FAIL" and fault.hint == "set CACHEIR_CACHE_DIR to one that can"


def test_an_unknown_plugin(installed: Make) -> None:
    with pytest.raises(UsageError, match="there is no plugin 'coer'") as caught:
        examine(installed(), "coer")
    assert caught.value.hint == "did you mean 'core'?"


def test_a_blocked_plugin(write_module: Write, installed: Make) -> None:
    found = findings(installed(write_module("faulty", "1 / 0"), block=("faulty",)), "faulty")
    assert [finding.status for finding in found] == ["note"]


def test_counting() -> None:
    assert failures([]) == 0


def test_every_reference_of_a_record_is_found() -> None:
    kernel = KernelSpec(name="a", op="add", target="toy", entry="a:b", refuses="c:d", cost=print)
    assert list(references(kernel)) == [("entry", "a:b"), ("refuses", "c:d")]
    backend: Any = BackendSpec(
        name="a", summary="", targets=("a",), executor="a:b", probe="c:d", plan_steps=("e:f", print)
    )
    assert [reference for _, reference in references(backend)] == ["a:b", "c:d", "e:f"]
    assert list(references(CommandSpec(name="a", help="", app="x:y"))) == [("app", "x:y")]
