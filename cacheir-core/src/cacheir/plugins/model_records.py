"""Records of models: importers, families, named models and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.plugins.markers import STABLE
from cacheir.plugins.record import check_fields, record
from cacheir.plugins.ref import Lazy

if TYPE_CHECKING:
    from cacheir.models.decoder_spec import DecoderSpec
    from cacheir.models.imported import ImportedModel, TokenizerSource
    from cacheir.runtime.tokenizer import Tokenizer


@record(level=STABLE)
class ImporterSpec:
    """A reader of one kind of model: ``run(path, options) -> ImportedModel``, which reads headers and no weights.

    Picked by ``suffixes`` and ``marker_files`` (a folder that holds one of them); then ``sniff(path)`` is asked, which
    gives None to accept and else the reason.
    """

    name: str
    summary: str
    run: Lazy[Callable[[Path, Mapping[str, Any]], ImportedModel]]
    suffixes: tuple[str, ...] = ()  # ".gguf"
    marker_files: tuple[str, ...] = ()  # "config.json"
    sniff: Lazy[Callable[[Path], str | None]] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not (self.suffixes or self.marker_files or self.sniff):
            raise ValueError(f"importer {self.name!r} needs suffixes, marker_files or sniff, or it is never picked")
        for suffix in self.suffixes:
            if not suffix.startswith("."):
                raise ValueError(f"importer {self.name!r}: suffix must begin with '.', not {suffix!r}")


@record(level=STABLE)
class FamilySpec:
    """A family of decoders: how a model's configuration becomes a ``DecoderSpec`` and what its tensors are called.

    ``config`` takes the parsed config.json, ``gguf_config`` the metadata of a GGUF file; each raises
    ``UnsupportedModelError`` naming the field it cannot serve. ``names(spec, source)`` with ``source`` ``huggingface``
    or ``gguf`` maps canonical weight keys to tensor names. ``block`` writes the layer graphs, None for core's standard
    decoder block.
    """

    name: str
    summary: str
    architectures: tuple[str, ...]  # Hugging Face: "LlamaForCausalLM"
    gguf_architectures: tuple[str, ...]  # general.architecture: "llama"
    config: Lazy[Callable[[Mapping[str, Any]], DecoderSpec]]
    gguf_config: Lazy[Callable[[Mapping[str, Any]], DecoderSpec]]
    names: Lazy[Callable[[DecoderSpec, str], Mapping[str, str]]]
    block: Lazy[Callable[..., Any]] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not (self.architectures or self.gguf_architectures):
            raise ValueError(f"family {self.name!r} names no architecture, so no model is ever of it")


@record(level=STABLE)
class ModelSpec:
    """A named model that comes with an installed distribution. ``find()`` gives its file or folder.

    ``find`` raises ``UsageError``, with the command that installs it, where the distribution is not installed.
    """

    name: str  # "smollm2"
    summary: str
    find: Lazy[Callable[[], Path]]
    distribution: str
    license: str

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=STABLE)
class TokenizerSpec:
    """A kind of tokenizer; ``name`` is the ``TokenizerSource.kind`` that it builds."""

    name: str
    summary: str
    load: Lazy[Callable[[TokenizerSource], Tokenizer]]

    def __post_init__(self) -> None:
        check_fields(self)
