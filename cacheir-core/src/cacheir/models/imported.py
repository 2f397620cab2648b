"""What an importer hands over: the model as data, where its tensors lie, and its tokenizer; no weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.models.decoder_spec import DecoderSpec
from cacheir.quick_dataclass import dataclass

if TYPE_CHECKING:
    from cacheir.ir.graph import Attr, Module

# The one mode of a program that is no decoder: main as it was imported, without a cache.
PLAIN_MODE = "main"


@dataclass(frozen=True, kw_only=True)
class WeightSource:
    """Where one stored tensor lies.

    ``file`` is relative to ``ImportedModel.root``; ``offset`` and ``nbytes`` are bytes in that file. ``format`` is an
    element type (``f16``) or the name of a ``QuantFormat`` (``q4_1``); ``shape`` is logical, outermost first.
    ``tensor`` is the name in the file, for messages.
    """

    file: str
    tensor: str
    offset: int
    nbytes: int
    format: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class UnpackRecipe:
    """A dense weight that is made of stored tensors by the ``UnpackerSpec`` called ``method``.

    The weight's canonical key is its key in ``ImportedModel.recipes``; the tensor ``part`` of it lies in the source
    table as ``KEY.part``. ``attrs`` are what the method needs to know besides, sorted by name.
    """

    method: str
    parts: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TokenizerSource:
    """A tokenizer as data: ``kind`` names the ``TokenizerSpec`` that builds it, ``data`` is what that one needs.

    ``data`` holds only JSON values, so that an artifact can carry it in ``tokenizer/tokenizer_source.json``;
    ``files`` (name -> path) are copied beside it.
    """

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """What the model's own files say about generating: the ids that end a text, and sampling values where given."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    chat_template: str | None = None
    # text of special tokens that templates name: bos_token, eos_token, ...
    special_tokens: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A model, opened but not read.

    ``root`` is the folder that ``WeightSource.file`` and ``files`` are relative to. ``spec`` is set for decoders,
    ``module`` for a plain graph (ONNX, StableHLO), whose weights name their keys. ``recipes`` are the weights that are
    made of several stored tensors, or of one that does not hold plain elements, by canonical key. ``header_hash`` is
    the SHA-256 over everything the importer read (headers, config, tokenizer), hexadecimal. ``notes`` lists what was
    defaulted or ignored, for the import report.
    """

    root: Path
    files: tuple[str, ...]
    importer: str
    header_hash: str
    sources: Mapping[str, WeightSource]
    recipes: Mapping[str, UnpackRecipe] = field(default_factory=dict)
    spec: DecoderSpec | None = None
    module: Module | None = None
    tokenizer: TokenizerSource | None = None
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
