"""The suite of kernels and the search for tiles, on the processor: what is timed, what is kept, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and kernels are timed on its tensors")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.errors import BackendError, BackendUnavailable, UsageError  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda import plugin  # noqa: E402
from cacheir_cuda.measure import search, suite  # noqa: E402
from cacheir_cuda.measure.command import measure_on, tuned_plans  # noqa: E402
from cacheir_cuda.measure.command import tune as command  # noqa: E402
from cacheir_cuda.measure.matrices import matrices_of  # noqa: E402
from cacheir_cuda.measure.search import Product, candidates, products, tune  # noqa: E402
from cacheir_cuda.measure.timing import line  # noqa: E402
from cacheir_cuda.tuned_tiles import (  # noqa: E402
    BUCKETS,
    TileConfig,
    choose,
    default_config,
    merged,
    read_table,
    write_table,
)

WHERE = {"dtype": "bfloat16", "device": "a GPU"}


def by_size(product: Product, config: TileConfig) -> list[float]:
    """A made-up machine: 128 rows a program do not fit, fewer columns are faster, and the middle sample counts."""
    if config.rows_of_matrix == 128:
        raise RuntimeError("out of resource: shared memory")
    seconds = product.count * config.columns / config.warps / config.stages * 1e-9
    return [seconds, 9 * seconds, seconds / 2]


def test_the_fastest_tile_that_runs_is_kept_with_its_samples(tmp_path: Path) -> None:
    wanted = products([(96, 64), (200, 64), (96, 64)])
    assert wanted == [Product(count, 64, rows) for count in (96, 200) for rows in BUCKETS]
    rows = tune(wanted, by_size, **WHERE)
    assert [row.config for row in rows[:3]] == [
        TileConfig(32, 64, 8, 5), TileConfig(32, 64, 8, 5), TileConfig(32, 64, 8, 4)
    ]  # fmt: skip
    assert list(rows[0].samples_s) == by_size(wanted[0], rows[0].config)
    table = tmp_path / "tiles.json"
    write_table(table, rows)
    assert sorted(read_table(table), key=lambda row: row.key) == sorted(rows, key=lambda row: row.key)
    assert choose(read_table(table), count=200, width=64, rows=16, **WHERE) == (rows[3].config, "")


def test_an_unknown_key_falls_back_with_a_reason() -> None:
    (row,) = tune([Product(96, 64, 16)], by_size, **WHERE)
    for changed, words in (
        ({"count": 97}, "97 x 64, up to 16 rows of bfloat16 on a GPU was not timed"),
        ({"device": "another"}, "was not timed"),
        ({"dtype": "float16"}, "was not timed"),
    ):
        wanted = {"count": 96, "width": 64, "rows": 16, **WHERE, **changed}
        found, reason = choose([row], **wanted)  # type: ignore[arg-type]
        assert found == default_config(16) and words in reason
    for stale in (replace(row, source="0" * 16), replace(row, toolchain="triton 0")):
        found, reason = choose([stale], count=96, width=64, rows=16, **WHERE)
        assert found == default_config(16) and "another Triton or source" in reason


def test_without_cublas_lt_the_tiles_are_tuned_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed, whose tiles are tuned")
    from cacheir_cuda import cublas_lt

    def missing(device: Any) -> Any:
        raise BackendUnavailable("cuBLASLt cannot be loaded here", hint="")

    monkeypatch.setattr(cublas_lt, "cublas_lt", missing)
    program = SimpleNamespace(max_tokens=4096)
    assert tuned_plans(program, "bfloat16", torch.device("cuda"), "a GPU", 1.0) == []  # type: ignore[arg-type]
    assert "stay with torch's launch: cuBLASLt cannot be loaded here" in capsys.readouterr().err


def test_a_run_says_which_products_have_no_tile_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed, whose kernels read the table")
    from cacheir_cuda.kernels import triton_tiles

    (row,) = tune([Product(96, 64, 16)], by_size, **WHERE)
    monkeypatch.setattr(triton_tiles, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(triton_tiles, "UNTUNED", set())

    def tile(count: int) -> TileConfig:
        found: TileConfig = triton_tiles.tile_of.__wrapped__(count, 64, 16, torch.bfloat16, torch.device("cuda"))
        return found

    monkeypatch.setattr(triton_tiles, "installed_table", lambda: ())
    assert tile(96) == default_config(16) and not triton_tiles.UNTUNED, "no table is no reason"
    monkeypatch.setattr(triton_tiles, "installed_table", lambda: (row,))
    assert tile(96) == row.config and not triton_tiles.UNTUNED
    assert tile(97) == default_config(16)
    assert {"97 x 64, up to 16 rows of bfloat16 on a GPU was not timed (cacheir tune)"} == triton_tiles.UNTUNED


def test_where_no_tile_runs() -> None:
    def never(product: Product, config: TileConfig) -> list[float]:
        raise RuntimeError("no such instruction")

    with pytest.raises(BackendError, match=r"no tile ran for Product.*no such instruction"):
        tune([Product(8, 8, 16)], never, **WHERE)


def test_no_product_is_begun_when_the_time_is_over() -> None:
    said: list[str] = []
    assert tune([Product(8, 8, 16)], by_size, seconds=-1.0, progress=said.append, **WHERE) == []
    assert said == ["Product(count=8, width=8, rows=16): not timed, the -1 seconds were over"]


def test_no_candidate_is_begun_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second: the second product is left in the middle, and has no row."""
    now, said = [0.0], list[str]()
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def measure(product: Product, config: TileConfig) -> list[float]:
        now[0] += 1
        return [1.0]

    wanted = [Product(96, 64, 64), Product(200, 64, 64), Product(8, 64, 64)]
    first = len(list(candidates(wanted[0])))
    rows = tune(wanted, measure, seconds=first + 2.5, progress=said.append, **WHERE)
    assert [row.count for row in rows] == [96] and now[0] == first + 3
    assert said[1].endswith(f"no row, the {first + 2.5:g} seconds were over after 3 candidates")
    assert "not timed" in said[2]


def test_a_tile_that_triton_cannot_make_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's errors are no RuntimeErrors."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton.runtime.errors import OutOfResources

    def launch(x: Any, weight: Any, out: Any, *, config: TileConfig) -> None:
        if config.rows_of_matrix > 32:
            raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr("cacheir_cuda.kernels.triton_tiles.product_parts", launch)
    (row,) = tune([Product(96, 64, 64)], measure_on(torch.device("cpu"), torch.float16), **WHERE)
    assert row.config.rows_of_matrix == 32


def test_rows_of_other_products_stay() -> None:
    old = tune([Product(96, 64, 16), Product(8, 64, 16)], by_size, **WHERE)
    new = [replace(old[0], config=TileConfig())]
    assert merged(old, new) == [old[1], new[0]]


@pytest.mark.parametrize("change", [
    {"format": 2}, {"rows": [{}]}, {"rows": 3}, {"config": {"columns": 96}}, {"config": {"rows_of_matrix": 1 << 20}},
    {"count": -1}, {"count": "8"}, {"samples_s": "now"}, {"samples_s": [math.nan]}, {"samples_s": [1.0, math.inf]},
    {"samples_s": [-1.0]}, {"samples_s": [True]}, {"samples_s": "12"}, {"config": {"columns": 64.9}},
    {"config": {"columns": "64"}}, {"config": {"warps": True}}, {"config": {"stages": ...}},
])  # fmt: skip
def test_a_table_is_not_believed(change: dict[str, Any], tmp_path: Path) -> None:
    table = tmp_path / "tiles.json"
    write_table(table, tune([Product(96, 64, 16)], by_size, **WHERE))
    held = json.loads(table.read_text())
    if set(change) <= {"format", "rows"}:
        held |= change
    elif "config" in change:
        tile = held["rows"][0]["config"] | change["config"]
        held["rows"][0]["config"] = {name: value for name, value in tile.items() if value is not ...}
    else:
        held["rows"][0] |= change
    table.write_text(json.dumps(held))
    with pytest.raises(UsageError, match="is no table of tuned tiles"):
        read_table(table)


@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(BUCKETS))
def test_every_candidate_is_a_tile(count: int, width: int, rows: int) -> None:
    found = list(candidates(Product(count, width, rows)))
    assert found and len(set(found)) == len(found)
    assert default_config(rows).columns == 128


@pytest.mark.usefixtures("interpreted")
def test_any_candidate_s_product_is_the_product() -> None:
    from cacheir_cuda.kernels.triton_tiles import product_parts

    x, weight = torch.randn(5, 300).half(), torch.randn(70, 300).half()
    for config in (TileConfig(32, 64), TileConfig(128, 128), TileConfig(16, 16)):
        out = torch.full((2, 5, 70), torch.nan)
        product_parts(x, weight, out, config=config)
        expected = x.double() @ weight.double().T
        assert (out.sum(0) - expected).abs().max() < 3e-3 * expected.abs().max()


def test_the_matrices_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    program = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda")).program
    # q, k and v of 4, 2 and 2 heads of 8; out; gate and up; down; the head.
    assert set(matrices_of(program)) == {(64, 32), (32, 32), (128, 32), (32, 64), (97, 32)}


def test_a_line_through_points() -> None:
    fixed, slope = line([(0.0, 2.0), (10.0, 7.0), (20.0, 12.0)])
    assert (fixed, slope) == pytest.approx((2.0, 0.5))


def test_the_suite_times_what_runs_here_and_names_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")

    def timed(options: dict[str, Any]) -> dict[str, Any]:
        return suite.timed(options, torch.device("cpu"), "bfloat16")

    report = timed({"set": {"scale": "32"}})
    json.dumps(report, allow_nan=False)
    kernels = {row["kernel"] for row in report["rows"]}
    assert {"cuda.torch.linear", "cuda.torch.rms_norm", "cuda.torch.paged_attention_prefill_sdpa"} <= kernels
    reason = "interpreter" if find_spec("triton") else "Triton is not installed"
    assert reason in report["skipped"]["cuda.triton.linear"]
    assert "runs on a GPU alone" in report["skipped"]["cuda.adapter.flash_attention_vllm_prefill"]
    for row in report["rows"]:
        assert len(row["samples_s"]) == 7 and row["gb_per_s"] > 0 and row["tflop_per_s"] > 0
    assert set(report["fits"]["cuda.torch.linear"]) == {"t_fixed_us", "slope_gb_per_s"}
    only = timed({"set": {"scale": "32", "kernel": "cuda.torch.rms_norm"}})
    assert {row["kernel"] for row in only["rows"]} == {"cuda.torch.rms_norm"}
    two = timed({"set": {"scale": "32", "kernel": "cuda.torch.rms_norm,cuda.torch.swiglu"}})
    assert {row["kernel"] for row in two["rows"]} == {"cuda.torch.rms_norm", "cuda.torch.swiglu"}
    assert not two["skipped"]
    monkeypatch.setattr("cacheir_cuda.kernels.norm.rms_norm", None)
    broken = timed({"set": {"scale": "32", "kernel": "cuda.torch.rms_norm"}})
    assert not broken["rows"] and "not callable" in broken["failed"]["cuda.torch.rms_norm"]
    monkeypatch.setattr(suite, "time", SimpleNamespace(monotonic=iter(range(0, 9999, 10)).__next__))
    late = timed({"set": {"scale": "32", "seconds": "1"}})
    assert not late["rows"] and late["skipped"]["cuda.torch.rms_norm"] == "the suite's seconds were over"
    for setting in (
        {"size": "3"}, {"scale": "0"}, {"seconds": "now"}, {"kernel": "cuda.torch.rms_norm,cuda.torch.silence"}
    ):  # fmt: skip
        with pytest.raises(UsageError):
            timed({"set": setting})


def test_a_kernel_of_one_row_is_timed_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "seconds_of", lambda call, device: [float(call(0) is None)] * 7)
    monkeypatch.setattr(suite, "_why_not", lambda spec: None)

    def one_row(q: Any, kv: Any, *operands: Any, out: Any, **attrs: Any) -> None:
        (length,) = kv.lengths
        assert len(q) == 1 and length in (16, 128)

    monkeypatch.setattr("cacheir_cuda.adapters.flashinfer.single_decode", one_row)
    name = "cuda.adapter.flashinfer_single_decode"
    report = suite.timed({"set": {"scale": "32", "kernel": name}}, torch.device("cpu"), "bfloat16")
    assert not report["failed"]
    assert [row["shape"] for row in report["rows"]] == ["1 rows, 16 keys", "1 rows, 128 keys"]


def test_without_a_gpu_both_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    reason = "the device is the processor" if find_spec("triton") else "Triton is not installed"
    with pytest.raises(BackendUnavailable, match=f"nothing can be tuned here: {reason}"):
        command("smollm2", tmp_path / "tiles.json", "bfloat16", 9.0)
    with pytest.raises(BackendUnavailable, match=r"^the CUDA kernels cannot be timed: the device is the processor$"):
        suite.run({})
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.delenv("CACHEIR_CUDA_DEVICE")
    with pytest.raises(BackendUnavailable, match=r"cannot be timed: libcuda"):
        suite.run({})
    with pytest.raises(BackendUnavailable, match=r"nothing can be tuned here: libcuda"):
        command("smollm2", tmp_path / "tiles.json", "bfloat16", 9.0)
    assert {spec.name for spec in plugin.cacheir_register_commands()} == {"tune"}
