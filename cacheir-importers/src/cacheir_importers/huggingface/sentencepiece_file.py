"""Reads ``tokenizer.model``, a SentencePiece model: a protocol buffer, of which only the fields that matter are read.

Source: ``sentencepiece_model.proto``. Each length is checked against the bytes that are left; unknown fields are
passed over, as the format asks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cacheir.errors import MalformedModelError

# Fields of ModelProto, TrainerSpec, NormalizerSpec and SentencePiece.
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL_TYPE, _SUFFIX, _BEGIN, _END = 3, 24, 41, 42
_CHARACTER_MAP, _DUMMY_PREFIX, _ONE_SPACE, _ESCAPE = 2, 3, 4, 5
MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """``pieces`` by id, as text, score and kind; the flags say what is done to a text before it is split."""

    pieces: tuple[tuple[str, float, int], ...]
    model_type: str
    space_prefix: bool
    one_space: bool  # runs of spaces become one, and those at the ends go
    space_suffix: bool  # a space belongs to the word before it
    escapes_spaces: bool
    character_map: bytes  # empty for none; see ``cacheir_importers.character_map``
    begin: int  # ids of the control tokens at the ends of a text, -1 for none
    end: int


def parse_model(content: bytes, place: str) -> SentencePieceModel:
    """The model in ``content``; MalformedModelError names the byte where it is damaged."""
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(content, 0, len(content), place):
        if number == _PIECE:
            pieces.append(_piece(value, len(pieces), place))
        elif number in (_TRAINER, _NORMALIZER):
            section = trainer if number == _TRAINER else normalizer
            section.update(_fields(_bytes(value, place), 0, None, place))
    if not pieces:
        raise MalformedModelError(f"{place} holds no pieces: it is no SentencePiece model")
    model_type = trainer.get(_MODEL_TYPE, 1)
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=MODEL_TYPES.get(model_type, str(model_type)) if isinstance(model_type, int) else "unknown",
        space_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        one_space=bool(normalizer.get(_ONE_SPACE, 1)),
        escapes_spaces=bool(normalizer.get(_ESCAPE, 1)),
        character_map=_bytes(normalizer.get(_CHARACTER_MAP, b""), place),
        space_suffix=bool(trainer.get(_SUFFIX, 0)),
        begin=_signed(trainer.get(_BEGIN, 1)),
        end=_signed(trainer.get(_END, 2)),
    )


def _signed(value: int | bytes) -> int:
    """An int32 as the format writes it: a negative one as 64 bits."""
    return -1 if isinstance(value, bytes) or value >= 1 << 31 else value


def _piece(value: int | bytes, number: int, place: str) -> tuple[str, float, int]:
    fields = dict(_fields(_bytes(value, place), 0, None, place))
    text, score, kind = fields.get(_TEXT, b""), fields.get(_SCORE, b"\0\0\0\0"), fields.get(_KIND, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4 or not isinstance(kind, int):
        raise MalformedModelError(f"{place}: piece {number} has a field of a wrong type")
    try:
        return text.decode("utf-8"), float(struct.unpack("<f", score)[0]), kind
    except UnicodeDecodeError as error:
        raise MalformedModelError(f"{place}: piece {number} is not UTF-8: {error.reason}") from error


def _bytes(value: int | bytes, place: str) -> bytes:
    if isinstance(value, bytes):
        return value
    raise MalformedModelError(f"{place}: a number stands where a message must be")


def _fields(content: bytes, start: int, end: int | None, place: str) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an int for a varint, bytes for everything else."""
    stop = len(content) if end is None else end
    position = start
    while position < stop:
        tag, position = _varint(content, position, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(content, position, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _varint(content, position, place)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise MalformedModelError(f"{place}: a field of the unknown wire type {kind} at byte {position}")
        if size > stop - position:
            raise MalformedModelError(
                f"{place}: a field at byte {position} needs {size} bytes, and {stop - position} are left"
            )
        yield number, content[position : position + size]
        position += size


def _varint(content: bytes, position: int, place: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            raise MalformedModelError(f"{place} ends at byte {position}, inside a number")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedModelError(f"{place}: a number at byte {position} is longer than ten bytes")
