"""What quantise recipes made is kept for the next load: reused, checked, bounded, and never another model's."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir.artifact import cache as program_cache
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.ir.graph import Graph, Module, Op, Value, Weight
from cacheir.ir.types import QuantType, TensorType
from cacheir.ir.weights import Derived, Stored
from cacheir.plugins.specs import QuantFormatSpec
from cacheir.schedule.program import Program
from cacheir.schedule.program_weights import program_weights
from cacheir.weights.made_cache import MADE, MadeCache, shrink
from cacheir.weights.store import WeightStore, open_weights

FORMATS = core_formats()
RECIPE = 'quantize(stored "m") {format = "int4-g32"}'
BYTES = QuantArray.quantize(np.zeros((4, 64), np.float32), FORMATS["int4-g32"]).nbytes


def quantised(stash: Any, *, seed: int = 0) -> Program:
    """A graph of one dense matrix that is read as int4-g32."""
    stash.put("m", "f32", (4, 64), seed=seed)
    dense = Weight(Value("m", TensorType.of("f32", 4, 64), "weight"), Stored("m"))
    small = Weight(
        Value("m.quantised", QuantType.of("int4-g32", "f32", 4, 64), "weight"),
        Derived("quantize", ("m",), (("format", "int4-g32"),)),
    )
    out = Value("y", TensorType.of("f32", 1))
    main = Graph("main", (), (), (dense, small), (Op("work", (small.value,), (out,)),), (out,))
    modules = {"decode": Module("decode", (main,))}
    return Program(
        modules=modules,
        schedules={},
        plans={},
        weights=program_weights(modules.values()),
        sources=stash.sources,
        groups=(),
        group_layers=(),
        target="cpu",
        backend="cpu",
        max_seq=8,
        max_rows=1,
        max_tokens=4,
    )


def opened(program: Program, stash: Any, cache: Path, **formats: QuantFormatSpec) -> WeightStore:
    return open_weights(program, stash.root, {**FORMATS, **formats}, cache=cache)


@pytest.fixture
def roundings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The formats that were rounded into, as often as they were."""
    seen: list[str] = []
    real = QuantArray.quantize

    def counting(values: Any, format: QuantFormatSpec) -> QuantArray:
        seen.append(format.name)
        return real(values, format)

    monkeypatch.setattr(QuantArray, "quantize", counting)
    return seen


def kept_files(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / MADE).rglob("*") if path.is_file())


def test_a_second_load_rounds_nothing_and_gives_the_same_bytes(
    stash: Any, tmp_path: Path, roundings: list[str]
) -> None:
    program = quantised(stash)
    cache = tmp_path / "cache"
    first = opened(program, stash, cache).get(RECIPE)
    assert roundings == ["int4-g32"]
    second = opened(program, stash, cache).get(RECIPE)
    assert roundings == ["int4-g32"]
    np.testing.assert_array_equal(second.blocks, first.blocks)
    assert (second.shape, second.format) == (first.shape, first.format)
    wanted = QuantArray.quantize(stash.values["m"].astype(np.float32), FORMATS["int4-g32"])
    np.testing.assert_array_equal(second.blocks, wanted.blocks)


def test_without_a_cache_nothing_is_kept(stash: Any, roundings: list[str]) -> None:
    program = quantised(stash)
    for _ in range(2):
        open_weights(program, stash.root, FORMATS).get(RECIPE)
    assert roundings == ["int4-g32"] * 2


@pytest.mark.parametrize("damage", ["flipped", "cut short", "longer", "emptied"])
def test_a_damaged_file_is_made_again(damage: str, stash: Any, tmp_path: Path, roundings: list[str]) -> None:
    program = quantised(stash)
    cache = tmp_path / "cache"
    wanted = opened(program, stash, cache).get(RECIPE)
    (file,) = kept_files(cache)
    data = bytearray(file.read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
    file.write_bytes({"cut short": data[:-1], "longer": data + b"x", "emptied": b""}.get(damage, bytes(data)))
    found = opened(program, stash, cache).get(RECIPE)
    np.testing.assert_array_equal(found.blocks, wanted.blocks)
    assert len(roundings) == 2
    opened(program, stash, cache).get(RECIPE)
    assert len(roundings) == 2  # what was made again has taken its place


def test_two_models_of_equal_headers_share_nothing(stash: Any, tmp_path: Path, roundings: list[str]) -> None:
    cache = tmp_path / "cache"
    program = quantised(stash)
    first = opened(program, stash, cache).get(RECIPE)
    (stash.root / "model.bin").unlink()
    stash.sources.clear()
    program = quantised(stash, seed=1)
    second = opened(program, stash, cache).get(RECIPE)
    assert len(roundings) == 2 and not np.array_equal(first.blocks, second.blocks)
    assert len(kept_files(cache)) == 2


def test_another_code_that_rounds_is_not_handed_what_this_one_made(
    stash: Any, tmp_path: Path, roundings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plugin"
    package.mkdir()
    monkeypatch.syspath_prepend(str(package))
    record = FORMATS["int4-g32"]
    assert isinstance(record.pack, str)
    module, _, name = record.pack.partition(":")
    code = f"import {module} as groups\npack = groups.{name}\n"
    (package / "their_rounding.py").write_text(code)
    theirs = replace(record, pack="their_rounding:pack")
    cache = tmp_path / "cache"
    program = quantised(stash)
    for _ in range(2):
        opened(program, stash, cache, **{"int4-g32": theirs}).get(RECIPE)
    assert len(roundings) == 1
    (package / "their_rounding.py").write_text(code + "# edited\n")
    opened(program, stash, cache, **{"int4-g32": theirs}).get(RECIPE)
    opened(program, stash, cache).get(RECIPE)
    assert len(roundings) == 3


def test_the_models_not_used_for_the_longest_time_make_room(tmp_path: Path) -> None:
    array = QuantArray.quantize(np.ones((4, 64), np.float32), FORMATS["int4-g32"])
    limit = 2.5 * (array.nbytes + 32)
    for number, content in enumerate(("a" * 64, "b" * 64, "c" * 64)):
        cache = MadeCache(tmp_path, content, expected_bytes=array.nbytes + 32, limit_bytes=limit)
        cache.keep(RECIPE, array)
        assert cache.find(RECIPE, array.format, array.shape) is not None
        os.utime(tmp_path / MADE / content[:32], (number, number))
        left = sorted(path.name[0] for path in (tmp_path / MADE).iterdir())
        assert left == [["a"], ["a", "b"], ["b", "c"]][number]
    shrink(tmp_path, 0.0)
    assert list((tmp_path / MADE).iterdir()) == []


def test_a_model_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    array = QuantArray.quantize(np.ones((4, 64), np.float32), FORMATS["int4-g32"])
    cache = MadeCache(tmp_path, "a" * 64, expected_bytes=1000, limit_bytes=999)
    cache.keep(RECIPE, array)
    assert not (tmp_path / MADE).exists()


def test_a_cache_that_cannot_be_written_is_said_once_and_changes_nothing(
    stash: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = QuantArray.quantize(np.ones((4, 64), np.float32), FORMATS["int4-g32"])
    (tmp_path / MADE).write_text("a file where the folder should be")
    cache = MadeCache(tmp_path, "a" * 64, expected_bytes=BYTES, limit_bytes=1e9)
    for recipe in (RECIPE, RECIPE + " "):
        cache.keep(recipe, array)
        assert cache.find(recipe, array.format, array.shape) is None
    assert capsys.readouterr().err.count("quantised weights are not kept") == 1


def test_the_cache_counts_and_clears_them(stash: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    opened(quantised(stash), stash, cache).get(RECIPE)
    assert program_cache.notes_bytes(cache) >= BYTES
    program_cache.clear(cache)
    assert kept_files(cache) == []


def test_folders_that_another_process_removes_meanwhile_stop_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = QuantArray.quantize(np.ones((4, 64), np.float32), FORMATS["int4-g32"])
    for content in ("a" * 64, "b" * 64):
        MadeCache(tmp_path, content, expected_bytes=BYTES, limit_bytes=1e9).keep(RECIPE, array)
    listed = Path.iterdir

    def iterdir(self: Path) -> Any:
        members = list(listed(self))
        for member in members:
            if member.name[0] == "a":
                shutil.rmtree(member)
        return iter(members)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    shrink(tmp_path, 0.0)
    monkeypatch.undo()
    assert list((tmp_path / MADE).iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = QuantArray.quantize(np.ones((4, 64), np.float32), FORMATS["int4-g32"])
    cache = MadeCache(tmp_path, "a" * 64, expected_bytes=BYTES, limit_bytes=1e9)
    cache.keep(RECIPE, array)
    (path,) = (tmp_path / MADE / ("a" * 32)).iterdir()
    path.unlink()
    os.mkfifo(path)
    assert cache.find(RECIPE, array.format, array.shape) is None
    cache.keep(RECIPE, array)
    assert "is no file" in capsys.readouterr().err


def test_a_cache_with_something_else_in_it_is_cleaned_and_cleared(tmp_path: Path) -> None:
    (tmp_path / MADE).write_text("a file where the folder should be")
    program_cache.remove_unfinished(tmp_path)
    program_cache.clear(tmp_path)
    (tmp_path / MADE).unlink()
    (tmp_path / MADE).mkdir()
    (tmp_path / MADE / "dangling").symlink_to(tmp_path / "nowhere")
    program_cache.remove_unfinished(tmp_path)
    assert program_cache.notes_bytes(tmp_path) == 0
    program_cache.clear(tmp_path, older_than_days=1)
    assert [path.name for path in (tmp_path / MADE).iterdir()] == ["dangling"]
