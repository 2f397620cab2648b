"""The commands compile, verify, cache and models, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cacheir.artifact import layout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def artifact(smollm2_path: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifacts") / "smollm2"
    run = cacheir(cache, "compile", str(smollm2_path), "--output", str(out), "--max-seq", "64")
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{out}\n"
    assert "running the passes for prefill and decode" in run.stderr
    return out


def cacheir(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cacheir.cli.main", *arguments]
    environment = {**os.environ, "CACHEIR_CACHE_DIR": str(cache), "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_verify_says_ok_and_the_content(artifact: Path, cache: Path) -> None:
    run = cacheir(cache, "verify", str(artifact))
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("ok    ")
    found = json.loads(cacheir(cache, "verify", str(artifact), "--json").stdout)
    assert found["findings"] == []
    assert len(found["content"]) == 64
    assert found["files"] == sum(1 for file in artifact.rglob("*") if file.is_file())


def test_verify_names_every_mismatch_and_exits_with_8(artifact: Path, cache: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    for name in ("graphs/decode.cir", "passes/times.json"):
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
    (copy / "plans" / "prefill.json").unlink()
    run = cacheir(cache, "verify", str(copy))
    assert run.returncode == 8
    lines = run.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "FAIL  graphs/decode.cir",
        "FAIL  plans/prefill.json",
        "FAIL  passes/times.json",
    ]
    (copy / layout.CARD).write_bytes((copy / layout.CARD).read_bytes().replace(b"decode", b"decoed", 1))
    run = cacheir(cache, "verify", str(copy))
    assert run.returncode == 8
    assert run.stderr.startswith("error: ")
    assert layout.CARD in run.stderr


def test_compile_says_what_is_wrong_in_a_sentence(smollm2_path: Path, cache: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    cases = [
        (["nowhere", "-o", out], 2, "there is no model at nowhere"),
        ([str(smollm2_path), "-o", out, "--quant", "int3"], 2, "no quantiser is called 'int3'"),
        ([str(smollm2_path), "-o", out, "--target", "abacus"], 9, "no installed plugin has a backend 'abacus'"),
        ([str(smollm2_path), "-o", out, "--kernel", "linear"], 2, "cannot read --kernel 'linear'"),
        ([str(smollm2_path), "-o", out, "--kernel", "linear=nope"], 2, "there is no such kernel for linear"),
        ([str(smollm2_path), "-o", out, "--skip-pass", "fuse-qvk"], 2, "fuse-qvk"),
        ([str(smollm2_path), "-o", out, "--max-seq", "99999999"], 2, "max_seq is 99999999"),
        ([str(smollm2_path), "-o", str(smollm2_path.parent)], 2, "exists and is no artifact"),
    ]
    for arguments, code, sentence in cases:
        run = cacheir(cache, "compile", *arguments)
        assert (run.returncode, run.stdout) == (code, ""), (arguments, run)
        assert sentence in run.stderr
        assert "Traceback" not in run.stderr
    assert not Path(out).exists()


def test_compile_options_reach_the_artifact(smollm2_path: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--skip-pass", "fuse_qkv", "--kernel", "rms_norm=reference", "--mode", "decode", "--json"]
    run = cacheir(cache, "compile", str(smollm2_path), "-o", str(out), *options)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["modes"] == ["decode"]
    assert summary["weights"] == "linked"
    card = json.loads((out / layout.CARD).read_text())
    assert card["options"]["kernels"] == {"rms_norm": "reference"}
    assert not list(out.glob("passes/*fuse-qkv*"))
    schedule = json.loads((out / layout.schedule_file("decode")).read_text())
    entries = [entry for graph in schedule["graphs"] for entry in graph["entries"] if entry["op_name"] == "rms_norm"]
    assert entries
    assert all(choice["kernel"] == "" for entry in entries for choice in entry["choices"])


def test_the_cache_is_listed_and_cleared(smollm2_path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    program = f"from cacheir.compile import open_program; open_program({str(smollm2_path)!r})"
    environment = {**os.environ, "CACHEIR_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    listed = json.loads(cacheir(cache, "cache", "list", "--json").stdout)
    (entry,) = listed["programs"]
    assert (entry["target"], entry["fault"]) == ("cpu", "")
    assert listed["folder"] == str(cache)
    assert entry["key"][:16] in cacheir(cache, "cache", "list").stdout
    assert cacheir(cache, "cache", "clear").returncode == 2
    assert cacheir(cache, "cache", "clear", "--all", "--older", "3").returncode == 2
    assert cacheir(cache, "cache", "clear", "--older", "1").stdout.startswith("removed 0 programs")
    assert cacheir(cache, "cache", "clear", "--all").stdout.startswith("removed 1 program,")
    assert json.loads(cacheir(cache, "cache", "list", "--json").stdout)["programs"] == []


def test_models_lists_where_each_lies(smollm2_path: Path, cache: Path) -> None:
    rows = json.loads(cacheir(cache, "models", "--json").stdout)["models"]
    (row,) = [row for row in rows if row["name"] == "smollm2"]
    assert row["where"] == str(smollm2_path)
    assert (row["license"], row["problem"]) == ("Apache-2.0", "")
    assert "smollm2" in cacheir(cache, "models").stdout
