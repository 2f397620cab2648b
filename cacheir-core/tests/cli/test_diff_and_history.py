"""``cacheir diff``, ``inspect --history``, ``--until`` and ``--from`` as a person runs them, on a fake model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_diff_as_text_and_json(cacheir: Run, fake_model: Path, compiled: Path, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return cacheir(*words, plugins="fake_backend")

    other = tmp_path / "other"
    made = run("compile", str(fake_model), "--target", "fake", "--skip-pass", "fuse-qkv", "--output", str(other))
    assert made.returncode == 0, made.stderr
    same = run("diff", str(compiled), str(compiled), "--exit-code")
    assert (same.returncode, same.stdout) == (0, "no difference\n")
    told = run("diff", str(compiled), str(other))
    assert told.returncode == 0
    assert "options: 1 unlike\n  skip_passes\n    - none\n    + fuse-qkv\n" in told.stdout
    assert "more: --whole shows all" in told.stdout
    value = run("diff", str(compiled), str(other), "--json", "--only", "kernels", "--graphs", "--exit-code")
    assert value.returncode == 1
    answer = json.loads(value.stdout)
    assert {change["section"] for change in answer["changes"]} == {"kernels"}
    assert any("-  " in text and "fused_rmsnorm_qkv_rope" in text for text in answer["graphs"])
    assert "diff has no section 'kernel'" in run("diff", str(compiled), str(other), "--only", "kernel").stderr


def test_history_follows_a_value_through_its_names(cacheir: Run, compiled: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return cacheir("inspect", str(compiled), *words, plugins="fake_backend")

    told = run("--history", "%q_turned", "--graph", "decoder_layer", "--mode", "decode").stdout
    assert told.startswith("%q_turned in @decoder_layer of decode\n  logical: fuse-qkv (core)\n    -  %q: ")
    assert "logical: fuse-norm-qkv-rope (core), there %q and %q_turned\n" in told
    assert "program: prefill-decode-specialization (core), over the whole module\n" in told
    gone = json.loads(run("--history", "gate", "--json").stdout)["history"]
    assert {place["mode"] for place in gone["places"]} == {"prefill", "decode"}
    assert all(place["touched_by"][-1]["pass"] == "fuse-swiglu" for place in gone["places"])
    still = run("--history", "@norm", "--graph", "main").stdout
    assert "%norm in @main of prefill and decode\n" in still
    unknown = run("--history", "%q_turnd")
    assert unknown.returncode == 2
    assert "no graph has a value '%q_turnd'" in unknown.stderr and "%q_turned" in unknown.stderr


def test_compile_in_two_parts(cacheir: Run, fake_model: Path, compiled: Path, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return cacheir(*words, plugins="fake_backend")

    stopped, made = str(tmp_path / "stopped"), str(tmp_path / "made")
    first = run("compile", str(fake_model), "--target", "fake", "--until", "gather-last-rows", "-o", stopped)
    assert first.returncode == 0, first.stderr
    assert {path.name for path in Path(stopped, "graphs").iterdir()} == {"logical.cir", "prefill.cir", "decode.cir"}
    refused = run("compile", stopped, "--from", "gather-last-rows", "--precise", "-o", made)
    assert refused.returncode == 2 and "goes on with the options it was begun with" in refused.stderr
    second = run("compile", stopped, "--from", "gather-last-rows", "-o", made)
    assert second.returncode == 0, second.stderr
    assert (Path(made) / "graphs/decode.cir").read_bytes() == (compiled / "graphs/decode.cir").read_bytes()
    assert run("diff", str(compiled), made, "--exit-code").returncode == 0


def test_graphs_and_the_list_up_to_a_pass(cacheir: Run, fake_model: Path) -> None:
    def run(*words: str) -> str:
        done = cacheir(*words, plugins="fake_backend")
        assert done.returncode == 0, done.stderr
        return done.stdout

    model = [str(fake_model), "--target", "fake"]
    text = run("inspect", *model, "--until", "fuse-qkv", "--graph", "decoder_layer")
    assert text.startswith("// logical\ngraph @decoder_layer {") and "fused_qkv(" in text and "silu(" in text
    between = run("inspect", *model, "--from", "fuse-qkv", "--until", "fuse-swiglu", "--graph", "decoder_layer")
    assert "-  %active" in between and "+  %product" in between and "fused_qkv" in between
    listed = run("passes", "--until", "dead-code", "--from", "fuse-qkv").splitlines()
    names = [line.split()[1] for line in listed[1:] if line.startswith("logical")]
    assert "dead-code" in names and "fuse-qkv" not in names and "infer-shapes" not in names
