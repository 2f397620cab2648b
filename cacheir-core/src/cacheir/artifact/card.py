"""artifact.json: what was compiled, for what, with which limits, and the hash of every other file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from cacheir.models.decoder_spec import DecoderSpec
from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The model as it was when it was compiled. ``header_hash`` is the importer's, over all it read."""

    name: str
    label: str
    importer: str
    header_hash: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """How a model is compiled; part of the program key.

    ``max_seq`` positions of a sequence (0: the model's own limit), ``max_rows`` sequences of a step, ``max_tokens``
    tokens of a step. ``kernels`` forces a kernel for an op. ``precise`` takes only kernels that compute in f32,
    ``batch_invariant`` only those whose bits do not depend on the number of rows. ``strict`` refuses a model of which
    the importer left a field or a tensor unused. ``kv_window`` narrows what layers see to so many of the latest
    positions (0: the model's own), ``kv_sinks`` leaves the first ones in sight besides. ``backend_options`` are the
    target's own (``BackendSpec.options``); the artifact is opened with them unless who opens it asks for others.
    """

    target: str = "cpu"
    quant: str = ""
    modes: tuple[str, ...] = ("prefill", "decode")
    max_seq: int = 0
    max_rows: int = 8
    max_tokens: int = 512
    passes: tuple[str, ...] = ()
    skip_passes: tuple[str, ...] = ()
    kernels: Mapping[str, str] = field(default_factory=dict)
    precise: bool = False
    batch_invariant: bool = False
    strict: bool = False
    kv_window: int = 0
    kv_sinks: int = 0
    backend_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Package:
    """A distribution that the program needs, and what of it: kernels, a backend, a tokenizer kind."""

    distribution: str
    version: str
    provides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """Size in bytes and SHA-256 of a file."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """The whole of artifact.json. ``max_*`` are the limits in force, ``options`` what was asked for."""

    format: int
    core: str
    program_key: str
    model: ModelCard
    options: CompileOptions
    target: str
    backend: str
    instruction_set: str
    max_seq: int
    max_rows: int
    max_tokens: int
    groups: tuple[str, ...]  # the types of the KV groups
    group_layers: tuple[tuple[int, ...], ...]
    spec: DecoderSpec | None
    packages: tuple[Package, ...]
    files: Mapping[str, FileRecord]
    plan_notes: Mapping[str, object] = field(default_factory=dict)
