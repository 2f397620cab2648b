"""Split GGUF sets: the whole one, and each way in which a set is not whole (case A13)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir.errors import MalformedModelError, UsageError
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.gguf.writer import Typed, write_gguf

COUNT = 3
Split = Callable[..., list[Path]]


def part_name(number: int, count: int = COUNT) -> str:
    return f"m-{number:05}-of-{count:05}.gguf"


def split_metadata(number: int, count: int, tensors: int) -> dict[str, Any]:
    return {
        "split.no": Typed("u16", number),
        "split.count": Typed("u16", count),
        "split.tensors.count": Typed("i32", tensors),
    }


@pytest.fixture
def split(tmp_path: Path, whole: Any) -> Split:
    """Write the small Llama in three parts, as llama-gguf-split does; ``said`` changes split.* of a part."""

    def build(said: dict[int, dict[str, Any]] | None = None) -> list[Path]:
        metadata, tensors = whole
        names = list(tensors)
        paths = []
        for number in range(COUNT):
            values = {**(metadata if number == 0 else {}), **split_metadata(number, COUNT, len(names))}
            values |= (said or {}).get(number, {})
            held = {name: tensors[name] for name in names[number * 7 : (number + 1) * 7]}
            paths.append(tmp_path / part_name(number + 1))
            write_gguf(paths[-1], values, held)
        return paths

    return build


def stored_bytes(model: Any) -> dict[str, bytes]:
    found = {}
    for key, source in model.sources.items():
        content = (model.root / source.file).read_bytes()
        found[key] = content[source.offset : source.offset + source.nbytes]
    return found


def test_all_parts_are_the_unsplit_file(split: Split, whole: Any, tmp_path: Path) -> None:
    model = import_gguf(split()[0], {})
    write_gguf(tmp_path / "whole.gguf", *whole)
    single = import_gguf(tmp_path / "whole.gguf", {})
    assert stored_bytes(model) == stored_bytes(single)
    assert (model.spec, model.tokenizer, model.generation) == (single.spec, single.tokenizer, single.generation)
    assert model.files == tuple(part_name(number) for number in (1, 2, 3)) and model.notes == ()
    assert {source.file for source in model.sources.values()} == set(model.files)


def test_the_hash_covers_every_part(split: Split) -> None:
    first = import_gguf(split()[0], {}).header_hash
    assert import_gguf(split()[0], {}).header_hash == first
    assert import_gguf(split({2: {"general.note": "x"}})[0], {}).header_hash != first


def test_another_part_than_the_first(split: Split) -> None:
    with pytest.raises(UsageError) as caught:
        import_gguf(split()[1], {})
    assert str(caught.value) == (
        f"{part_name(2)} is part 2 of 3 of a split model, and a model is opened by its first part"
    )
    assert caught.value.hint == f"name {part_name(1)} instead" and caught.value.exit_code == 2


def test_a_missing_part_is_named(split: Split) -> None:
    paths = split()
    paths[1].unlink()
    with pytest.raises(MalformedModelError, match=rf"of the others 1 are missing: {part_name(2)}") as caught:
        import_gguf(paths[0], {})
    assert caught.value.exit_code == 11


@pytest.mark.parametrize("keep_name", [True, False])
def test_parts_joined_with_cat(split: Split, tmp_path: Path, keep_name: bool) -> None:
    paths = split()
    joined = tmp_path / "joined" / (paths[0].name if keep_name else "model.gguf")
    joined.parent.mkdir()
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    said = "parts of a split model were joined" if keep_name else r"name does not end in -00001-of-00003\.gguf"
    with pytest.raises(MalformedModelError, match=said) as caught:
        import_gguf(joined, {})
    assert caught.value.hint and "llama-gguf-split --merge" in caught.value.hint


def test_parts_whose_names_were_swapped(split: Split, tmp_path: Path) -> None:
    paths = split()
    shutil.move(paths[1], tmp_path / "x")
    shutil.move(paths[2], paths[1])
    shutil.move(tmp_path / "x", paths[2])
    with pytest.raises(MalformedModelError, match=rf"{part_name(2)}: split\.no is 2, and the part of that name must"):
        import_gguf(paths[0], {})
    with pytest.raises(MalformedModelError, match=rf"{part_name(2)} says that it is part 3 of 3 .* its name does not"):
        import_gguf(paths[1], {})


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({0: {"split.count": Typed("u16", 65_535)}}, r"part 1 of 65535 .* does not end in -00001-of-65535\.gguf"),
        ({2: {"split.count": Typed("u16", 4)}}, rf"{part_name(3)}: split\.count is 4, and the part .* must have 3"),
        ({0: {"split.tensors.count": Typed("i32", 99)}}, r"split\.tensors\.count is 99, and the 3 parts hold 20"),
        ({1: {"split.no": "two"}}, rf"{part_name(2)}: field 'split\.no' must be a whole number"),
    ],
)
def test_parts_that_say_otherwise(split: Split, said: dict[int, dict[str, Any]], problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        import_gguf(split(said)[0], {})


def test_a_count_of_parts_that_nobody_has(split: Split, tmp_path: Path) -> None:
    path = split({0: {"split.count": Typed("u16", 65_535)}})[0].rename(tmp_path / part_name(1, 65_535))
    with pytest.raises(MalformedModelError, match=r"65534 are missing: m-00002-of-65535\.gguf, .* and 65526 more"):
        import_gguf(path, {})


def test_a_tensor_in_two_parts(split: Split, whole: Any) -> None:
    paths = split()
    _, tensors = whole
    twice = {name: tensors[name] for name in list(tensors)[13:]}
    write_gguf(paths[2], split_metadata(2, COUNT, len(tensors)), twice)
    with pytest.raises(MalformedModelError, match=rf"stands in {part_name(2)} and in {part_name(3)}"):
        import_gguf(paths[0], {})


def test_a_part_that_is_cut_short(split: Split) -> None:
    paths = split()
    paths[2].write_bytes(paths[2].read_bytes()[:-4])
    with pytest.raises(MalformedModelError, match=rf"{part_name(3)}: tensor .* needs \d+ bytes"):
        import_gguf(paths[0], {})
