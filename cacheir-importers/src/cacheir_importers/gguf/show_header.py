"""The command `cacheir gguf`: lists what a GGUF file says, whether or not it can be run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cacheir_importers.gguf.parts import Part, all_tensors, read_parts

_SHOWN_ITEMS, _SHOWN_CHARACTERS = 6, 100


def show_header(
    file: Annotated[Path, typer.Argument(help="A .gguf file, or the first part of a split one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every value in full.")] = False,
) -> None:
    """List the metadata and the tensors of a GGUF file. Only headers are read."""
    parts = read_parts(file)
    typer.echo(json.dumps(_as_json(parts), indent=1) if as_json else "\n".join(_lines(parts)))


def _lines(parts: tuple[Part, ...]) -> Iterator[str]:
    """Text for a terminal. What the file says is escaped: it may hold control characters."""
    for part in parts:
        header = part.header
        yield (
            f"{_quoted(part.name)}: GGUF version {header.version}, {len(header.metadata)} values,"
            f" {len(header.tensors)} tensors, data from byte {header.data_offset} on"
        )
    first = parts[0].header
    yield ""
    for key, value in first.metadata.items():
        yield f"{_quoted(key)} ({first.value_types[key]}) = {_shortened(value)}"
    yield ""
    for name, (place, entry) in all_tensors(parts).items():
        nbytes = "?" if entry.nbytes is None else f"{entry.nbytes:,}"
        where = f" in {_quoted(place)}" if len(parts) > 1 else ""
        yield f"{_quoted(name)}  {entry.type_name}  {list(entry.shape)}  {nbytes} bytes at {entry.offset}{where}"


def _as_json(parts: tuple[Part, ...]) -> dict[str, Any]:
    first = parts[0].header
    return {
        "format": 1,
        "files": [part.name for part in parts],
        "version": first.version,
        "metadata": {
            key: {"type": first.value_types[key], "value": _plain(value)} for key, value in first.metadata.items()
        },
        "tensors": [
            {
                "name": name,
                "file": place,
                "type": entry.type_name,
                "type_id": entry.type_id,
                "shape": list(entry.shape),
                "offset": entry.offset,
                "bytes": entry.nbytes,
            }
            for name, (place, entry) in all_tensors(parts).items()
        ],
    }


def _plain(value: Any) -> Any:
    """Arrays as lists; a number that JSON cannot say, as text."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, (str, int, float)):
        return value
    return [_plain(item) for item in value]


def _quoted(text: str) -> str:
    """``text`` as it is where it is plain, else with everything else escaped."""
    return text if text.isascii() and text.isprintable() else json.dumps(text)


def _shortened(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + " ...")
    if isinstance(value, (int, float)):
        return str(value)
    items = ", ".join(_shortened(item) for item in value[:_SHOWN_ITEMS])
    return f"[{items}]" if len(value) <= _SHOWN_ITEMS else f"[{items}, ... {len(value)} in all]"
