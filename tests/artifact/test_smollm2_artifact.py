"""The artifact of a real model: equal bytes in other processes, weights that other libraries read, bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cacheir.artifact import layout
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.read import read_artifact
from cacheir.compile import compile_model, open_program
from cacheir.formats.quant_array import QuantArray
from cacheir.plugins.installation import default

COMPILE = "import sys; from cacheir import compile_model; compile_model(sys.argv[1], output=sys.argv[2])"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(cache))


@pytest.fixture(scope="module")
def artifact(smollm2_path: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(cache))
        return compile_model(smollm2_path, output=tmp_path_factory.mktemp("artifacts") / "smollm2")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("seed", ["1", "4242"])
def test_another_process_writes_the_same_bytes(
    artifact: Artifact, smollm2_path: Path, tmp_path: Path, seed: str
) -> None:
    command = [sys.executable, "-c", COMPILE, str(smollm2_path), str(tmp_path / "again")]
    variables = environment(PYTHONHASHSEED=seed, CACHEIR_CACHE_DIR=str(tmp_path / "cache"), TZ="Pacific/Chatham")
    subprocess.run(command, env=variables, check=True)
    first, second = files_of(artifact.path), files_of(tmp_path / "again")
    assert set(first) == set(second)
    assert {name for name in first if first[name] != second[name]} <= {layout.TIMES}


def test_a_layer_is_written_once(artifact: Artifact) -> None:
    for mode, module in artifact.program.modules.items():
        calls = [op for op in module.main.ops if op.callee]
        assert len(calls) == 30
        assert len(module.layers) == 1
        assert (artifact.path / layout.graph_file(mode)).stat().st_size < 12_000


def test_every_op_of_the_layer_has_a_kernel_on_the_cpu(artifact: Artifact) -> None:
    for schedule in artifact.program.schedules.values():
        for graph in schedule.graphs:
            for entry in graph.entries:
                assert all(choice.reason for choice in entry.choices)
                if graph.graph.startswith("decoder_layer"):
                    assert all(choice.kernel for choice in entry.choices), (entry.op_name, entry.choices)


def test_materialised_weights_are_those_of_the_file(artifact: Artifact, smollm2_path: Path, tmp_path: Path) -> None:
    """The safetensors library finds the bytes that the gguf package finds in the model."""
    gguf = pytest.importorskip("gguf")
    safetensors = pytest.importorskip("safetensors")
    made = compile_model(smollm2_path, output=tmp_path / "whole", materialise=True)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_path).tensors}
    with safetensors.safe_open(made.path / layout.TENSORS, framework="numpy") as file:
        names = list(file.keys())
        assert set(names) == set(made.program.sources) == set(artifact.program.sources)
        for name in names:
            original = stored[artifact.program.sources[name].tensor]
            assert file.get_tensor(name).tobytes() == np.ascontiguousarray(original.data).tobytes(), name
    first = made.open_weights()
    second = artifact.open_weights()
    assert first.content_hash() == second.content_hash() == made.lock.content


def test_a_warm_open_runs_no_importer(smollm2_path: Path, cache: Path) -> None:
    assert open_program(smollm2_path).origin == "compiled"
    program = (
        "import sys\n"
        "from cacheir.compile import open_program\n"
        "artifact = open_program(sys.argv[1])\n"
        "print(artifact.origin, *(name for name in sys.modules if name.startswith('cacheir_importers.')))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(smollm2_path)],
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    origin, *modules = run.stdout.split()
    assert origin == "cache"
    # Registering families and formats imports their tables, reading a model would import the readers.
    readers = ("importer", "reader", "tokenizer", "safetensors", "checkpoint")
    assert [name for name in modules if any(word in name.rpartition("cacheir_importers.")[2] for word in readers)] == []
    assert run.stderr == ""


MEMORY = """
import sys
import numpy as np
from pathlib import Path
from cacheir.artifact.read import read_artifact
from cacheir.plugins.installation import default
artifact = read_artifact(Path(sys.argv[1]), default())
store = artifact.open_weights()
kept = []
for recipe in artifact.program.weights:
    weight = store.get(recipe)
    kept.append(weight.dense() if hasattr(weight, "dense") else np.array(weight, np.float32))
    store.release()
status = Path("/proc/self/status").read_text().split()
print(sum(array.nbytes for array in kept), int(status[status.index("VmHWM:") + 1]) * 1024)
"""


# ru_maxrss would not do: a child begins with the peak of the process that started it.
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of resident memory is read from /proc")
def test_unpacking_all_weights_keeps_little_beside_them(artifact: Artifact) -> None:
    """540 MB of float32 weights, and the peak of the whole process stays under 1.1 GB with room for the rest."""
    command = [sys.executable, "-c", MEMORY, str(artifact.path)]
    run = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    weights, peak = map(int, run.stdout.split())
    assert 500e6 < weights < 600e6
    assert peak < weights + 200e6


def test_values_are_those_of_the_gguf_package(artifact: Artifact, smollm2_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_path).tensors}
    weights = artifact.open_weights()
    for key in ("layers.0.attn.q", "layers.29.ffn.down", "norm"):
        tensor = stored[artifact.program.sources[key].tensor]
        wanted = gguf.dequantize(tensor.data, tensor.tensor_type)
        got = weights.get(f'stored "{key}"')
        np.testing.assert_array_equal(got.dense() if isinstance(got, QuantArray) else got, wanted)


def test_records_are_json_that_others_read(artifact: Artifact) -> None:
    records = json.loads((artifact.path / layout.RECORDS).read_text("utf-8"))
    changed = [record for record in records if record["outcome"] == "changed"]
    assert {"fuse-qkv", "fuse-swiglu", "prefill-decode-specialization"} <= {record["name"] for record in changed}
    for record in changed:
        if record["stage"] == "plan":  # a planning step writes schedules and plans, and changes no graph
            assert record["diff"] == ""
        else:
            assert (artifact.path / record["diff"]).read_text("utf-8").startswith("--- ")
    assert read_artifact(artifact.path, default()).records() == artifact.records()
