"""An artifact of a backend that cannot work here is looked at, planned and compared all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir.cli.main import run
from cacheir.compile import compile_model
from cacheir.plugins.installation import default
from cacheir_importers.tiny import write_tiny

REASON = "the driver is not installed"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A program of the cpu backend, which from then on says that it cannot work here."""
    root = tmp_path_factory.mktemp("another")
    write_tiny(root / "tiny", family="llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(root / "cache"))
        compile_model(root / "tiny", target="cpu", output=root / "tiny.cacheir")
        module, _, name = default().backends["cpu"].probe.partition(":")
        patch.setattr(f"{module}.{name}", lambda: REASON)
        yield str(root / "tiny.cacheir")


def test_explain_shows_what_the_program_knows(artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", artifact, "--json"]) == 0
    shown = capsys.readouterr()
    assert f"cannot work here ({REASON}), so floors, predictions and times are left out" in shown.err
    found = json.loads(shown.out)
    assert {"cpu.numpy.linear", "cpu.numpy.head_argmax"} <= {node["kernel"] for node in found["nodes"]}
    assert sum(node["total"]["bytes"] for node in found["nodes"]) > 0
    assert {found["totals"][name] for name in ("floor_s", "predicted_s", "measured_s")} == {None}
    assert run(["explain", artifact, "--pass", "fuse-qkv"]) == 0
    assert "fuse-qkv" in capsys.readouterr().out


def test_measuring_and_running_are_refused_with_the_reason(artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["explain", artifact, "--measure"], ["run", artifact, "--prompt", "a"]):
        assert run(command) != 0
        assert f"the backend cpu cannot work here: {REASON}" in capsys.readouterr().err


def test_a_plan_wants_to_know_what_the_other_machine_has(artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", artifact, "--memory", "2GiB"]) == 0
    shown = capsys.readouterr()
    assert "fits into 2.0GiB" in shown.out and "a plan for another machine" in shown.err
    assert run(["plan", artifact]) == 2
    assert "give --memory: what the other machine has" in capsys.readouterr().err


def test_inspect_diff_and_export_ask_no_device(
    artifact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["inspect", artifact],
        ["inspect", artifact, "--kernels"],
        ["inspect", artifact, "--memory"],
        ["diff", artifact, artifact],
        *(["export", artifact, str(tmp_path / f"graph{ending}")] for ending in (".cir", ".json", ".dot", ".html")),
    ):
        assert run(command) == 0, command
    assert "no difference" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 4
