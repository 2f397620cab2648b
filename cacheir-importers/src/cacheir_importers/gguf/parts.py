"""The parts of a GGUF model: the one file, or all files of a split set, each checked against the others.

A split set is called ``NAME-00001-of-00003.gguf`` and so on. Each part says in ``split.no`` (from 0) and
``split.count`` which one it is; the first holds the metadata of the model. Source: llama.cpp's ``llama-gguf-split``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cacheir.errors import MalformedModelError, UsageError
from cacheir_importers.fields import Fields
from cacheir_importers.gguf.reader import Header, TensorEntry, read_header
from cacheir_importers.weight_table import some

_MOST_PARTS = 65_535  # split.count is a u16
_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_MERGE_HINT = "merge the parts as llama-gguf-split does: llama-gguf-split --merge FIRST_PART MERGED"


@dataclass(frozen=True)
class Part:
    """One file: its name in the model's folder, and its header."""

    name: str
    header: Header


def read_parts(path: Path) -> tuple[Part, ...]:
    """The file at ``path``, or all parts of the split model whose first part it is.

    Raises MalformedModelError that names the part that is missing, that says it is another one, or whose tensors do not
    fit, and UsageError for a part that is not the first.
    """
    header = read_header(path)
    metadata = Fields(header.metadata, path.name)
    count = metadata.whole_or("split.count", 1, least=0, most=_MOST_PARTS)
    if count <= 1:
        return (Part(path.name, header),)
    number = metadata.whole("split.no", least=0, most=_MOST_PARTS)
    names = _names(path, number, count)
    _refuse_joined(path, header)
    if number:
        raise UsageError(
            f"{path.name} is part {number + 1} of {count} of a split model, and a model is opened by its first part",
            hint=f"name {names[0]} instead",
        )
    present = set(os.listdir(path.parent))
    missing = [name for name in names if name not in present]
    if missing:
        raise MalformedModelError(
            f"{path.name} is part 1 of {count} of a split model, and of the others {len(missing)} are missing:"
            f" {some(missing)}",
            hint="put all parts into one folder under the names they were made with",
        )
    parts = [Part(path.name, header), *(_read_part(path.parent, names, place) for place in range(1, count))]
    _check_tensors(parts, metadata)
    return tuple(parts)


def all_tensors(parts: tuple[Part, ...]) -> dict[str, tuple[str, TensorEntry]]:
    """Tensor name -> file name and entry, over all parts; a name stands in one part only."""
    return {name: (part.name, entry) for part in parts for name, entry in part.header.tensors.items()}


def _names(path: Path, number: int, count: int) -> list[str]:
    """The names of all parts, from the name of one; MalformedModelError where that name says something else."""
    spelt = _NAME.fullmatch(path.name)
    if spelt is None or (int(spelt.group(2)), int(spelt.group(3))) != (number + 1, count):
        raise MalformedModelError(
            f"{path.name} says that it is part {number + 1} of {count} of a split model (split.no, split.count), and"
            f" its name does not end in -{number + 1:05}-of-{count:05}.gguf",
            hint=f"give the parts the names they were made with; of parts that were joined by hand, {_MERGE_HINT}",
        )
    return [f"{spelt.group(1)}-{place + 1:05}-of-{count:05}.gguf" for place in range(count)]


def _refuse_joined(path: Path, header: Header) -> None:
    """Refuse parts that were joined with ``cat``: the first part's tensors end, and another file begins there."""
    ends = [entry.offset + entry.nbytes for entry in header.tensors.values() if entry.nbytes is not None]
    end = max([header.data_offset, *ends])
    with path.open("rb") as file:
        for place in {end, -(-end // header.alignment) * header.alignment}:
            file.seek(place)
            if file.read(4) == b"GGUF":
                raise MalformedModelError(
                    f"{path.name}: another GGUF file begins at byte {place}: parts of a split model were joined",
                    hint=_MERGE_HINT,
                )


def _read_part(folder: Path, names: list[str], place: int) -> Part:
    path = folder / names[place]
    header = read_header(path)
    metadata = Fields(header.metadata, path.name)
    said = {
        "split.no": metadata.whole("split.no", least=0, most=_MOST_PARTS),
        "split.count": metadata.whole("split.count", least=0, most=_MOST_PARTS),
    }
    for field, wanted in (("split.no", place), ("split.count", len(names))):
        if said[field] != wanted:
            raise MalformedModelError(
                f"{path.name}: {field} is {said[field]}, and the part of that name must have {wanted}",
                hint="the parts were renamed, or are of different models",
            )
    _refuse_joined(path, header)
    return Part(path.name, header)


def _check_tensors(parts: list[Part], metadata: Mapping[str, object]) -> None:
    seen: dict[str, str] = {}
    for part in parts:
        for name in part.header.tensors:
            if name in seen:
                raise MalformedModelError(f"tensor {name!r} stands in {seen[name]} and in {part.name}")
            seen[name] = part.name
    wanted = metadata.get("split.tensors.count")
    if isinstance(wanted, int) and wanted != len(seen):
        raise MalformedModelError(
            f"{parts[0].name}: split.tensors.count is {wanted}, and the {len(parts)} parts hold {len(seen)} tensors",
            hint="the parts are of different models",
        )
