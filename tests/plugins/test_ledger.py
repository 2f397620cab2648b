"""``cacheir plugins ledger``: who supplied what of a real artifact, and what lost; plugins may be gone since."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Install = Callable[..., Path]

THIRD = """
    from cacheir.plugins import FamilySpec, KernelSpec, PassSpec, Stage, hookimpl

    def rest(graph, context):
        context.note("looked and rested")
        return graph

    def refuses(op):
        return f"{op.name} is not to my taste"

    @hookimpl
    def cacheir_register_passes():
        yield PassSpec(name="rest", run=rest, stage=Stage.MODE, summary="Does nothing.", modes=("decode",))
        yield PassSpec(name="dead_code", run=rest, stage=Stage.MODE, summary="Has a name that is taken.")

    @hookimpl
    def cacheir_register_kernels():
        place = {"op": "linear", "target": "cpu.numpy", "entry": "cacheir_third:rest", "rank": -5}
        yield KernelSpec(name="third.silent", **place)
        yield KernelSpec(name="third.picky", refuses=refuses, **place)

    @hookimpl
    def cacheir_register_families():
        yield FamilySpec(name="other-llama", summary="", architectures=("LlamaForCausalLM",), gguf_architectures=(),
                         config="a:b", gguf_config="a:b", names="a:b")
"""


def rows_of(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return {(row["kind"], row["name"]): row for row in json.loads(done.stdout)["rows"]}


def test_a_ledger(install: Install, cacheir: Run, tmp_path: Path) -> None:
    install("cacheir-third", "3.1", THIRD)
    model, artifact = tmp_path / "tiny", tmp_path / "artifact"
    assert cacheir("make-tiny", str(model)).returncode == 0
    done = cacheir("compile", str(model), "--output", str(artifact))
    assert done.returncode == 0, done.stderr

    done = cacheir("plugins", "ledger", str(artifact), "--json")
    rows = rows_of(done)
    third = rows["pass", "rest"]
    assert (third["plugin"], third["version"]) == ("third", "3.1")
    assert third["where"].startswith("mode (") and "changed 0 of" in third["where"]
    assert third["lost"] == ["skipped: only for the modes decode"]
    dead_code = rows["pass", "dead-code"]
    assert dead_code["plugin"] == "core" and dead_code["lost"] == ["third's, since core has the name"]
    assert rows["op", "linear"]["plugin"] == "core"
    kernel = rows["kernel", "cpu.numpy.linear"]
    assert kernel["plugin"] == "cpu"
    assert any(text.startswith("third.silent (third): ") for text in kernel["lost"])
    assert "third.picky (third): linear is not to my taste" in kernel["lost"]
    assert rows["family", "llama"]["plugin"] == "importers"
    assert rows["backend", "cpu"]["plugin"] == "cpu"
    plugins = {each["name"]: each for each in json.loads(done.stdout)["plugins"]}
    assert plugins["third"]["distribution"] == "cacheir-third" and plugins["third"]["here"] == "the same"
    assert len(plugins["third"]["fingerprint"]) == 64

    text = cacheir("plugins", "ledger", str(artifact)).stdout
    assert "third.picky (third): linear is not to my taste" in text
    assert text.splitlines()[0].split() == ["KIND", "NAME", "PLUGIN", "VERSION", "WHERE", "LOST"]

    gone = cacheir("plugins", "ledger", str(artifact), "--json", CACHEIR_PLUGINS="third")
    rows = rows_of(gone)
    assert rows["pass", "rest"]["plugin"] == "third", "what the artifact recorded does not depend on what is here"
    assert rows["kernel", "cpu.numpy.linear"]["plugin"] == "cpu"
    assert rows["backend", "cpu"]["plugin"] == "?"
    plugins = {each["name"]: each["here"] for each in json.loads(gone.stdout)["plugins"]}
    assert plugins["cpu"] == "blocked" and plugins["third"] == "the same"


def test_an_edited_plugin_is_told_from_another_version(install: Install, cacheir: Run, tmp_path: Path) -> None:
    module = install("cacheir-third", "3.1", THIRD)
    model, artifact = tmp_path / "tiny", tmp_path / "artifact"
    assert cacheir("make-tiny", str(model)).returncode == 0
    assert cacheir("compile", str(model), "--output", str(artifact)).returncode == 0
    module.write_text(module.read_text() + "\n# edited\n")

    def here() -> str:
        plugins = json.loads(cacheir("plugins", "ledger", str(artifact), "--json").stdout)["plugins"]
        return str({each["name"]: each["here"] for each in plugins}["third"])

    assert here() == "other files under the same version"
    (module.parent / "cacheir_third-3.1.dist-info" / "METADATA").write_text("Name: cacheir-third\nVersion: 3.2\n")
    assert here() == "another version: 3.2"


def test_what_is_no_artifact(cacheir: Run, tmp_path: Path) -> None:
    done = cacheir("plugins", "ledger", str(tmp_path))
    assert done.returncode == 8 and done.stdout == ""
    assert "is no artifact" in done.stderr and "hint: cacheir compile" in done.stderr
