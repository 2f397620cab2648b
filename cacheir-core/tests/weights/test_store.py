"""The weight store: what recipes make, what is shared, and what happens to files under it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir.errors import MalformedModelError, ModelError, UsageError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.schedule.program import Program
from cacheir.weights.content_hash import hash_content
from cacheir.weights.store import WeightStore, open_weights

FORMATS = core_formats()


def opened(program: Program, stash: Any, **options: Any) -> WeightStore:
    return open_weights(program, stash.root, FORMATS, **options)


def test_every_recipe_gives_its_values(program: Program, stash: Any) -> None:
    store = opened(program, stash)
    for layer in (0, 1):
        q, k, o = (stash.values[f"layers.{layer}.{part}"] for part in "qko")
        np.testing.assert_array_equal(store.get(f'stored "layers.{layer}.norm"'), stash.values[f"layers.{layer}.norm"])
        stored_q = store.get(f'stored "layers.{layer}.q"')
        assert isinstance(stored_q, QuantArray)
        np.testing.assert_array_equal(stored_q.dense(), q)
        (joined,) = (text for text in program.weights if text.startswith("concat") and f"layers.{layer}." in text)
        np.testing.assert_array_equal(store.get(joined).dense(), np.concatenate([q, k]))
        (turned,) = (text for text in program.weights if text.startswith("transpose") and f"layers.{layer}." in text)
        np.testing.assert_array_equal(store.get(turned), o.T)
    embed = store.get('stored "embed"')
    assert embed.dtype == np.float16
    np.testing.assert_array_equal(embed, stash.values["embed"])


def test_stored_tensors_are_over_the_mapped_file_and_cannot_be_written(program: Program, stash: Any) -> None:
    store = opened(program, stash)
    for array in (store.get('stored "layers.0.norm"'), store.get('stored "layers.0.q"').blocks):
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_what_a_recipe_makes_is_shared_while_it_is_used(program: Program, stash: Any) -> None:
    store = opened(program, stash)
    turned = next(text for text in program.weights if text.startswith("transpose"))
    first = store.get(turned)
    assert store.get(turned) is first


def test_released_pages_are_read_again(program: Program, stash: Any) -> None:
    store = opened(program, stash)
    before = store.get('stored "layers.1.norm"')
    store.release()
    np.testing.assert_array_equal(before, stash.values["layers.1.norm"])
    store.close()
    np.testing.assert_array_equal(before, stash.values["layers.1.norm"])


def test_a_file_cut_short_before_opening_is_named_and_never_a_signal(program: Program, stash: Any) -> None:
    path = stash.root / "second.bin"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(MalformedModelError, match=r"second\.bin: tensor 't\.layers\.1\.k' .* the file has"):
        opened(program, stash).get('stored "layers.0.q"')


def test_a_file_cut_short_after_opening_is_named_and_never_a_signal(program: Program, stash: Any) -> None:
    store = opened(program, stash)
    store.get('stored "layers.0.q"')
    os.truncate(stash.root / "second.bin", 10)
    with pytest.raises(MalformedModelError, match=r"second\.bin: was changed while it was in use"):
        store.get('stored "layers.1.q"')
    with pytest.raises(MalformedModelError, match="was changed"):
        list(store.files.chunks("layers.1.q"))


def test_a_file_overwritten_in_place_is_named(
    program: Program, stash: Any, touch_later: Callable[[Path], None]
) -> None:
    store = opened(program, stash)
    store.get('stored "embed"')
    path = stash.root / "model.bin"
    with path.open("r+b") as file:
        file.write(b"HEAD")
    touch_later(path)
    with pytest.raises(MalformedModelError, match="was changed while it was in use"):
        store.get('stored "layers.0.norm"')


def test_a_file_replaced_by_rename_leaves_the_open_one_alone(program: Program, stash: Any) -> None:
    store = opened(program, stash)
    store.get('stored "layers.0.norm"')
    other = stash.root / "other.bin"
    other.write_bytes(b"\xff" * (stash.root / "model.bin").stat().st_size)
    os.replace(other, stash.root / "model.bin")
    np.testing.assert_array_equal(store.get('stored "layers.1.norm"'), stash.values["layers.1.norm"])


def test_a_missing_file_and_a_missing_tensor_are_named(program: Program, stash: Any) -> None:
    (stash.root / "second.bin").unlink()
    with pytest.raises(MalformedModelError, match=r"second\.bin: cannot be opened"):
        opened(program, stash).get('stored "layers.0.q"')
    short = {key: source for key, source in stash.sources.items() if key != "embed"}
    with pytest.raises(MalformedModelError, match="has no tensor for 'embed'"):
        opened(replace(program, sources=short), stash)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file": "../model.bin"}, "outside the model's folder"),
        ({"file": "/etc/hostname"}, "outside the model's folder"),
        ({"file": "a/../../b"}, "outside the model's folder"),
        ({"file": "a\\..\\b"}, "outside the model's folder"),
        ({"file": ""}, "outside the model's folder"),
        ({"offset": -1}, "negative offset"),
        ({"shape": (-6, -32)}, "negative offset or size"),
        ({"nbytes": 5}, "takes 384 bytes, not 5"),
        ({"shape": (6, 64)}, "takes 768 bytes, not 384"),
        ({"format": "q9_9"}, "which no installed plugin reads"),
        ({"format": "q4_1", "shape": (6, 31)}, "no whole blocks of 32"),
    ],
)
def test_a_source_that_cannot_be_is_refused(program: Program, stash: Any, change: dict[str, Any], message: str) -> None:
    sources = {**stash.sources, "embed": replace(stash.sources["embed"], **change)}
    with pytest.raises(ModelError, match=message):
        opened(replace(program, sources=sources), stash)


def test_a_tensor_of_another_type_than_the_program_needs_is_refused(program: Program, stash: Any) -> None:
    source = replace(stash.sources["embed"], format="f32", shape=(3, 32))
    with pytest.raises(MalformedModelError, match=r"is f32\[3, 32\], the program needs f16\[6, 32\]"):
        opened(replace(program, sources={**stash.sources, "embed": source}), stash)


def test_an_offset_beyond_the_file_is_refused_before_anything_is_mapped(program: Program, stash: Any) -> None:
    source = replace(stash.sources["embed"], offset=1 << 60)
    with pytest.raises(MalformedModelError, match="ends at byte 1152921504606847360"):
        opened(replace(program, sources={**stash.sources, "embed": source}), stash).get('stored "embed"')


def test_the_content_hash_is_taken_while_weights_are_read(program: Program, stash: Any, tmp_path: Path) -> None:
    cache, told = tmp_path / "cache", []
    store = opened(program, stash, cache=cache, on_content=told.append)
    assert told == []
    for recipe in program.weights:
        store.get(recipe)
    assert told == [hash_content(store.files)] == [store.content_hash()]

    again = opened(program, stash, cache=cache, on_content=told.append)
    again.get('stored "embed"')
    assert told == [store.content_hash()] * 2, "the second load remembers the hash and reads nothing for it"
    assert opened(program, stash).content_hash() == store.content_hash()


def test_one_changed_byte_is_another_content(
    program: Program, stash: Any, tmp_path: Path, touch_later: Callable[[Path], None]
) -> None:
    cache = tmp_path / "cache"
    before = opened(program, stash, cache=cache).content_hash()
    path = stash.root / "second.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    touch_later(path)
    assert opened(program, stash, cache=cache).content_hash() != before


def test_the_content_does_not_depend_on_files_and_offsets(program: Program, stash: Any) -> None:
    before = opened(program, stash).content_hash()
    whole = b"x" * 77
    sources = {}
    for key, source in stash.sources.items():
        sources[key] = replace(source, file="one.bin", offset=len(whole))
        whole += (stash.root / source.file).read_bytes()[source.offset :][: source.nbytes]
    (stash.root / "one.bin").write_bytes(whole)
    moved = replace(program, sources=sources)
    assert opened(moved, stash).content_hash() == before


@pytest.mark.parametrize("junk", [b"", b"zz" * 32, b"\xff" * 64, b"0" * 63])
def test_a_damaged_memory_is_no_memory(program: Program, stash: Any, tmp_path: Path, junk: bytes) -> None:
    cache = tmp_path / "cache"
    wanted = opened(program, stash, cache=cache).content_hash()
    (note,) = (cache / "content").iterdir()
    note.write_bytes(junk)
    assert opened(program, stash, cache=cache).content_hash() == wanted


def test_a_cache_that_cannot_be_written_does_not_stop_a_load(program: Program, stash: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert len(opened(program, stash, cache=tmp_path / "cache").content_hash()) == 64


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_what_is_no_file_is_refused_and_not_waited_for(program: Program, stash: Any) -> None:
    path = stash.root / "second.bin"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(MalformedModelError, match="is no file"):
        opened(program, stash).get('stored "layers.0.q"')
    path.unlink()
    path.mkdir()
    with pytest.raises(MalformedModelError, match="is no file"):
        opened(program, stash).get('stored "layers.0.q"')


def test_weights_that_were_closed_say_so(program: Program, stash: Any) -> None:
    store = opened(program, stash)
    file = store.files.file("model.bin")
    store.close()
    with pytest.raises(UsageError, match="was closed"):
        file.view(0, 4)
