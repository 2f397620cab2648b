"""A session as a file: its tokens, keys and values, bound to the program and the weights that they came from."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from cacheir.artifact.partial import remove_leftovers
from cacheir.errors import ArtifactDamagedError, ArtifactVersionError, UsageError
from cacheir.runtime.pages import pages_for
from cacheir.runtime.request import check_ids, check_length
from cacheir.runtime.sequence import Sequence
from cacheir.weights.atomic_file import write_stream

if TYPE_CHECKING:
    import numpy as np

    from cacheir.ir.types import KVType
    from cacheir.runtime.open_model import OpenModel

# The file: MAGIC, version u32, bytes of the header u32, the header (JSON), pages by group, sha256 of all before it.
MAGIC = b"CIRSESS\0"
VERSION = 1
_START = struct.Struct("<8sII")
_DIGEST_BYTES = 32
_LARGEST_HEADER = 64 << 20  # bytes: some millions of ids
_BATCH_PAGES = 64  # pages that are copied at once
# Formats whose pages come back bit for bit from float32, with the bytes of a number.
_VALUE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


def save_session(model: OpenModel, sequence: Sequence, path: Path) -> None:
    """Writes ``sequence`` to ``path``, whole or not at all; ``ArtifactError`` where it cannot be written.

    ``UsageError`` for pages in a format with scales of its own, which would not come back bit for bit.
    """
    _check_formats(model)
    remove_leftovers(path)
    with model.runner.lock:
        model.runner.check_open()
        header = json.dumps(_header(model, sequence)).encode()
        if len(header) > _LARGEST_HEADER:
            raise UsageError(f"a session of {len(sequence.ids)} tokens is too long to be saved")

        def parts() -> Iterator[bytes]:
            digest = hashlib.sha256()
            for part in (_START.pack(MAGIC, VERSION, len(header)), header):
                digest.update(part)
                yield part
            for part in _payload(model, sequence):
                digest.update(part)
                yield part
            yield digest.digest()

        write_stream(path, parts())


def restore_session(model: OpenModel, path: Path) -> Sequence:
    """The sequence that ``save_session`` wrote, in fresh pages.

    ``ArtifactDamagedError`` for a file that is not whole or no session, ``ArtifactVersionError`` for another version's,
    ``UsageError`` for one of another model, backend, page size or format, or where there is no file, ``OutOfPages``
    where the pages are too few. What a save of ``path`` that was killed left is removed, and named on stderr.
    """
    _check_formats(model)
    remove_leftovers(path)
    try:
        with path.open("rb") as file:
            return _restore(model, path, file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _restore(model: OpenModel, path: Path, file: BinaryIO) -> Sequence:
    nbytes = path.stat().st_size
    digest = hashlib.sha256()

    def read(count: int) -> bytes:
        data = file.read(count)
        if len(data) != count:
            raise ArtifactDamagedError(f"{path} ends too early: it is no whole session")
        digest.update(data)
        return data

    header = _read_header(path, nbytes, read)
    _check_origin(model, path, header)
    sequence = _sequence(model, path, header)
    payload = sum(len(_seen(model, sequence, group)) * _page_bytes(model, kind) for group, kind in _groups(model))
    expected = file.tell() + payload + _DIGEST_BYTES
    if nbytes != expected:
        raise ArtifactDamagedError(f"{path} has {nbytes} bytes, and its header promises {expected}")
    with model.runner.lock:
        model.runner.check_open()
        kv = model.runner.kv
        sequence.tables = kv.take_seen(sequence.cached, _next(sequence))
        try:
            for group, table, shape in _batches(model, sequence):
                kind = model.kv_groups[group]
                data = read(len(table) * _page_bytes(model, kind))
                model.executor.write_pages(group, table, _unpacked(data, kind.dtype).reshape(shape))
            if digest.digest() != file.read(_DIGEST_BYTES):
                raise ArtifactDamagedError(f"{path} does not have the content that was written: its checksum differs")
        except BaseException:
            kv.cut(sequence.tables, 0)
            raise
    return sequence


def _read_header(path: Path, nbytes: int, read: Callable[[int], bytes]) -> dict[str, Any]:
    if nbytes < _START.size:
        raise ArtifactDamagedError(f"{path} has {nbytes} bytes: it is no session")
    magic, version, length = _START.unpack(read(_START.size))
    if magic != MAGIC:
        raise ArtifactDamagedError(f"{path} does not begin as a session does")
    if version != VERSION:
        raise ArtifactVersionError(
            f"{path} has version {version} of a session, and this version reads {VERSION}",
            hint="restore it with the version that wrote it",
        )
    if length > min(_LARGEST_HEADER, nbytes - _START.size):
        raise ArtifactDamagedError(f"{path} promises a header of {length} bytes, which it does not have")
    try:
        header = json.loads(read(length))
    except (ValueError, RecursionError) as error:
        raise ArtifactDamagedError(f"{path} has a header that cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise ArtifactDamagedError(f"{path} has a header that is no object")
    return header


def _check_origin(model: OpenModel, path: Path, header: dict[str, Any]) -> None:
    """Keys and values mean something only to the weights, the kernels and the pages that made them."""
    own = _header(model, Sequence())
    for name, what in _ORIGIN.items():
        if name not in header:
            raise ArtifactDamagedError(f"{path} has no {name} in its header")
        if header[name] != own[name]:
            if name == "groups":
                _refuse_format(path, header[name], own[name])
            raise UsageError(
                f"{path} was saved with {what} {_short(header[name])}, and here it is {_short(own[name])}",
                hint="open the model as it was opened when the session was saved",
            )


def _refuse_format(path: Path, saved: Any, here: list[dict[str, Any]]) -> None:
    """UsageError where nothing but the format of keys and values is another, with how to open the model."""
    groups = saved if isinstance(saved, list) else []
    formats = [str(group.get("dtype")) if isinstance(group, dict) else "" for group in groups]
    if [{**group, "dtype": dtype} for group, dtype in zip(here, formats)] != saved:
        return
    was, now = (", ".join(sorted(set(names))) for names in (formats, [group["dtype"] for group in here]))
    raise UsageError(
        f"{path} was saved with keys and values kept as {was}, and here they are kept as {now}",
        hint=f"open the model with --kv-dtype {was} (kv_dtype in Python)" if len(set(formats)) == 1 else None,
    )


_ORIGIN = {
    "program_key": "the program",
    "weights": "the weights",
    "backend": "the backend",
    "page_tokens": "pages of so many tokens:",
    "groups": "keys and values of the kind",
}


def _sequence(model: OpenModel, path: Path, header: dict[str, Any]) -> Sequence:
    ids, cached, rotation = (header.get(name) for name in ("ids", "cached", "rotation"))
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise ArtifactDamagedError(f"{path} has no list of token ids in its header")
    if type(cached) is not int or not 0 <= cached <= len(ids) or type(rotation) is not int or rotation < 0:
        raise ArtifactDamagedError(f"{path} has {cached!r} of {len(ids)} tokens computed, which cannot be")
    check_length(len(ids), model.limits.max_seq)
    return Sequence(ids=check_ids(ids, model.limits.vocab_size), cached=cached, rotation=rotation)


def _header(model: OpenModel, sequence: Sequence) -> dict[str, Any]:
    program_key, weights = model.identity()
    return {
        "program_key": program_key,
        "weights": weights,
        "backend": model.program.backend,
        "page_tokens": model.runner.kv.page_tokens,
        "groups": [asdict(kind) for kind in model.kv_groups],
        "ids": sequence.ids,
        "cached": sequence.cached,
        "rotation": sequence.rotation,
    }


def _groups(model: OpenModel) -> Iterator[tuple[int, KVType]]:
    return enumerate(model.kv_groups)


def _next(sequence: Sequence) -> int:
    """The first position that may be fed: an output needs a token, so the last one may be computed again."""
    return max(0, sequence.cached - 1)


def _seen(model: OpenModel, sequence: Sequence, group: int) -> list[int]:
    """The places of a group's table that hold what is still seen: all but what lies behind a window."""
    kv = model.runner.kv
    unseen = kv.reaches[group].unseen(_next(sequence), kv.page_tokens)
    return [place for place in range(pages_for(sequence.cached, kv.page_tokens)) if place not in unseen]


def _payload(model: OpenModel, sequence: Sequence) -> Iterator[bytes]:
    size = model.runner.kv.page_tokens
    for group, pages, _ in _batches(model, sequence):
        data = model.executor.read_pages(group, pages).copy()
        used = sequence.cached % size
        if used and pages[-1] == sequence.tables[group][pages_for(sequence.cached, size) - 1]:
            data[-1, ..., used:, :] = 0  # what another session left there is nobody's business
        yield _packed(data, model.kv_groups[group].dtype)


def _batches(model: OpenModel, sequence: Sequence) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """(group, pages, shape of their numbers), a few pages at once, of the pages with computed positions in reach."""
    size = model.runner.kv.page_tokens
    for group, kind in _groups(model):
        table = tuple(sequence.tables[group][place] for place in _seen(model, sequence, group))
        for start in range(0, len(table), _BATCH_PAGES):
            pages = table[start : start + _BATCH_PAGES]
            yield group, pages, (len(pages), kind.layers, 2, kind.heads, size, kind.head_dim)


def _packed(data: np.ndarray, dtype: str) -> bytes:
    import numpy as np

    from cacheir.reference.bf16 import to_bf16

    if dtype == "bf16":
        return to_bf16(data).astype("<u2").tobytes()
    return data.astype(np.dtype("<f2" if dtype == "f16" else "<f4")).tobytes()


def _unpacked(data: bytes, dtype: str) -> np.ndarray:
    import numpy as np

    from cacheir.reference.bf16 import from_bf16

    if dtype == "bf16":
        return from_bf16(np.frombuffer(data, "<u2").astype(np.uint16))
    return np.frombuffer(data, "<f2" if dtype == "f16" else "<f4").astype(np.float32)


def _page_bytes(model: OpenModel, kind: KVType) -> int:
    values = 2 * kind.layers * kind.heads * kind.head_dim * model.runner.kv.page_tokens
    return values * _VALUE_BYTES[kind.dtype]


def _check_formats(model: OpenModel) -> None:
    for kind in model.kv_groups:
        if kind.dtype not in _VALUE_BYTES:
            raise UsageError(
                f"pages stored as {kind.dtype} do not come back bit for bit, so their session cannot be saved",
                hint=f"open the model with kv_dtype {', '.join(_VALUE_BYTES)}",
            )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
