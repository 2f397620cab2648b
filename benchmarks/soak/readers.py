"""The readers that are fuzzed: which valid files they start from, how those are changed, and how one is read."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import mutations
import numpy as np
from programs import prepare_onnx, prepare_stablehlo

from cacheir.models.imported import ImportedModel
from cacheir.plugins import resolve
from cacheir.plugins.installation import default
from cacheir.weights.sources import WeightFiles
from cacheir_importers.gguf import reader as gguf_reader
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.gguf.writer import TensorData, Typed, write_gguf
from cacheir_importers.huggingface.checkpoint import INDEX_FILE
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.npz.importer import import_npz
from cacheir_importers.onnx.importer import import_onnx
from cacheir_importers.stablehlo.importer import import_stablehlo
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

Change = Callable[[Random], tuple[str, bytes]]
SHAPE = TinyShape(hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, feed_forward=16)
MOST_MADE_BYTES = 1 << 22  # what a recipe of an accepted file may make here


@dataclass(frozen=True)
class Reader:
    """``prepare`` writes valid files into a folder and gives ``change``, which makes a changed one: name and bytes.

    ``read`` reads the folder after that file was written. It raises a CacheIRError or returns.
    """

    prepare: Callable[[Path], Change]
    read: Callable[[Path, str], None]


def finish(model: ImportedModel) -> None:
    """What a compiler would do next with a model that was accepted: look at every tensor, make what recipes say."""
    files = WeightFiles(model.root, model.sources, default().quant_formats.by_name())
    try:
        for key in model.sources:
            files.array(key)
        for key, recipe in model.recipes.items():
            parts = [files.array(f"{key}.{part}") for part in recipe.parts]
            if np.prod(recipe.shape, dtype=object) * 8 <= MOST_MADE_BYTES:
                unpack = resolve(default().unpackers[recipe.method].run)
                unpack(*parts, dtype=recipe.dtype, shape=recipe.shape, **dict(recipe.attrs))
    finally:
        files.close()
    if model.tokenizer is not None:
        tokenizer = resolve(default().tokenizers[model.tokenizer.kind].load)(model.tokenizer)
        tokenizer.decode(tokenizer.encode("Hello, wörld 😀 123"))


# --- GGUF ---------------------------------------------------------------------------------------


def gguf_models(folder: Path) -> list[tuple[dict[str, Any], dict[str, TensorData]]]:
    """Small Llamas: with a tokenizer, in several types, with values of every type."""
    from tokenizers import Tokenizer

    write_tiny(folder / "tiny")
    library = Tokenizer.from_file(str(folder / "tiny" / "tokenizer.json"))
    held = json.loads(library.to_str())
    vocabulary = library.get_vocab()
    base: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": 16,
        "llama.vocab_size": 300,
    }
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(vocabulary) - 3),
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in held["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    strange = {
        f"x.{kind}": Typed(kind, value)
        for kind, value in {
            "u8": 1,
            "i8": -1,
            "u16": 2,
            "i16": -2,
            "i64": -3,
            "u64": 4,
            "f64": 0.5,
            "bool": True,
        }.items()
    }
    strange |= {"x.nested": Typed("array of array of i32", [[1, 2], []]), "general.alignment": Typed("u32", 64)}
    sizes = {
        "token_embd.weight": (300, 32), "output_norm.weight": (32,), "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32), "blk.0.attn_k.weight": (16, 32), "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32), "blk.0.ffn_norm.weight": (32,), "blk.0.ffn_gate.weight": (32, 32),
        "blk.0.ffn_up.weight": (32, 32), "blk.0.ffn_down.weight": (32, 32),
    }  # fmt: skip

    def tensors(kind: str, nbytes: int) -> dict[str, TensorData]:
        made = {}
        for name, shape in sizes.items():
            elements = int(np.prod(shape))
            matrix = len(shape) == 2
            made[name] = TensorData(
                kind if matrix else "F32", shape, bytes(elements // 32 * nbytes if matrix else 4 * elements)
            )
        return made

    rope = {"rope_freqs.weight": TensorData("F32", (8,), np.linspace(1, 8, 8, dtype=np.float32).tobytes())}
    split = {"split.no": Typed("u16", 0), "split.count": Typed("u16", 1), "split.tensors.count": Typed("i32", 11)}
    return [
        ({**base, **tokenizer}, tensors("Q8_0", 34)),
        ({**base, **strange}, {**tensors("F32", 128), **rope}),
        ({**base, **split}, tensors("Q4_1", 20)),
    ]


def prepare_gguf(folder: Path) -> Change:
    """GGUF files, and what damages one of them at random."""
    models, files = gguf_models(folder), []
    for metadata, tensors in models:
        write_gguf(folder / "a.gguf", metadata, tensors)
        data = (folder / "a.gguf").read_bytes()
        files.append((data, number_places(data)))

    def change(random: Random) -> tuple[str, bytes]:
        if random.random() < 0.3:
            metadata, tensors = random.choice(models)
            write_gguf(folder / "a.gguf", changed_metadata(random, metadata), tensors)
            data = (folder / "a.gguf").read_bytes()
            return "a.gguf", data if random.random() < 0.7 else mutations.changed_bytes(random, data)
        data, places = random.choice(files)
        # What stands in the header is worth more than the zeros of the weights.
        return "a.gguf", mutations.changed_bytes(random, data, places)

    return change


def number_places(data: bytes) -> list[tuple[int, int]]:
    """Offset and width of every count, length, type, size and offset of a GGUF header."""
    places: list[tuple[int, int]] = []

    class Watching(gguf_reader.Cursor):
        def unsigned32(self, what: str) -> int:
            places.append((self.position, 4))
            return super().unsigned32(what)

        def unsigned64(self, what: str) -> int:
            places.append((self.position, 8))
            return super().unsigned64(what)

    with patch.object(gguf_reader, "Cursor", Watching):
        gguf_reader.parse_header(data, "a.gguf")
    # Lengths of keys come by the hundred: the few numbers at the end of the header should not drown.
    return places + places[-60:] * 3


def changed_metadata(random: Random, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """One value of another type or size, one key gone, or one key under the name of another."""
    key = random.choice([name for name in metadata if name != "general.alignment"])  # the writer obeys that one
    if random.random() < 0.15:
        return {name: value for name, value in metadata.items() if name != key}
    values: tuple[Any, ...] = (
        *("", "x", "llama", "qwen2", "gemma2", "qwen3moe", "gpt2", "bert", "qwen2", "{{", "a b"),
        *(0, 1, 3, 7, 10_000, 2**31 - 1, 2**31, 2**32 - 1, True, 0.0, -1.0, 1e30),
        *(Typed("f32", float("nan")), Typed("f64", float("inf")), Typed("i8", -1), Typed("u64", 2**64 - 1)),
        *(Typed("array of u8", [1] * 300), Typed("array of string", []), Typed("array of string", ["a", "a", "a b c"])),
        *(
            Typed("array of i32", [-1] * 300),
            Typed("array of f32", [float("nan")] * 300),
            Typed("array of bool", [True]),
        ),
    )
    changed = {**metadata, key: random.choice(values)}
    if random.random() < 0.1:
        changed[f"{key}x"] = random.choice(list(metadata.values()))
    return changed


# --- safetensors --------------------------------------------------------------------------------


def prepare_safetensors(folder: Path) -> Change:
    """safetensors files, with a model's other files beside them, and what damages one of them at random."""
    from safetensors.numpy import load_file, save

    write_tiny(folder / "model", shape=SHAPE)
    model = folder / "model"
    whole = (model / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    tensors = load_file(model / "model.safetensors")
    names, index = sorted(tensors), {"metadata": {}, "weight_map": {}}
    for number in range(2):
        part = {name: tensors[name] for name in names[number::2]}
        (model / f"{number}.safetensors").write_bytes(save(part))
        index["weight_map"] |= dict.fromkeys(part, f"{number}.safetensors")
    texts = {
        name: json.loads((model / name).read_bytes())
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
    }
    valid = {path.name: path.read_bytes() for path in model.iterdir()}
    last: list[str] = []

    def change(random: Random) -> tuple[str, bytes]:
        for name in last:  # every case starts from valid files
            if name in valid:
                (model / name).write_bytes(valid[name])
            else:
                (model / name).unlink()
        kind = random.random()
        if kind < 0.3:
            name, made = "model.safetensors", mutations.changed_bytes(random, whole, [(0, 8)])
        elif kind < 0.65:
            text = mutations.json_bytes(mutations.changed_json(random, header))
            promised = len(text) if random.random() < 0.9 else random.choice(mutations.NUMBERS)
            name, made = "model.safetensors", struct.pack("<Q", promised) + text + data
        elif kind < 0.78:
            name, made = INDEX_FILE, mutations.json_bytes(mutations.changed_json(random, index))
        else:
            name = random.choice(list(texts))
            made = mutations.json_bytes(mutations.changed_json(random, texts[name]))
            if random.random() < 0.1:
                made = mutations.changed_bytes(random, valid[name])
        last[:] = [name]
        return f"model/{name}", made

    return change


# --- NPZ ----------------------------------------------------------------------------------------


def prepare_npz(folder: Path) -> Change:
    """NPZ archives, with a model's other files beside them, and what damages one of them at random."""
    from safetensors.numpy import load_file

    write_tiny(folder / "tiny", shape=SHAPE)
    tensors = load_file(folder / "tiny" / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((folder / "tiny" / name).read_bytes())
    (folder / "tiny" / "model.safetensors").unlink()
    turned = {name: np.asfortranarray(value.astype(">f4")) for name, value in tensors.items()}
    files = []
    for arrays, save in ((tensors, np.savez), (tensors, np.savez_compressed), (turned, np.savez_compressed)):
        held = io.BytesIO()
        save(held, **arrays)
        files.append(held.getvalue())
    members = {f"{name}.npy": npy(value) for name, value in tensors.items()}

    def change(random: Random) -> tuple[str, bytes]:
        if random.random() < 0.4:
            return "w.npz", changed_archive(random, members)
        data = random.choice(files)
        return "w.npz", mutations.changed_bytes(random, data, zip_places(random, data))

    return change


def npy(array: np.ndarray) -> bytes:
    """One array as a file."""
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def zip_places(random: Random, data: bytes) -> list[tuple[int, int]]:
    """Numbers of one record of each kind: local header, entry of the directory, end."""
    places = []
    for mark, fields in (
        (b"PK\x03\x04", ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2))),
        (b"PK\x01\x02", ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4))),
        (b"PK\x05\x06", ((4, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2))),
    ):
        found = data.find(mark, random.randrange(len(data)) if mark != b"PK\x05\x06" else 0)
        if found >= 0:
            places += [(found + offset, width) for offset, width in fields]
    return places


def changed_archive(random: Random, members: Mapping[str, bytes]) -> bytes:
    """A sound archive with one member whose header or name is not."""
    held = io.BytesIO()
    name = random.choice(list(members))
    with zipfile.ZipFile(held, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for each, content in members.items():
            if each == name:
                each = random.choice((each, each, each, each, "../x.npy", "/x.npy", "x\0.npy", "." * 300 + ".npy"))
                content = changed_npy(random, content)
            archive.writestr(each, content)
    return held.getvalue()


def changed_npy(random: Random, content: bytes) -> bytes:
    """An array with another header text, or other bytes."""
    if random.random() < 0.3:
        return mutations.changed_bytes(random, content, [(6, 1), (7, 1), (8, 2)])
    kinds = ("'<f4'", "'>f8'", "'|O'", "'<f2'", "'<i8'", "[('a', '<f4')]", "'<U9999'", "'x'", "4", "'<f99'")
    shapes = (
        "(64,)",
        "()",
        "(2**40,)",
        "(-1,)",
        "(99999999999999,)",
        "(1, 2, 3)",
        "(0,)",
        "'a'",
        "(" * 40 + ")" * 40,
        "(1,) * 9",
    )
    orders = ("True", "False", "0", "None", "'F'")
    descr, order, shape = random.choice(kinds), random.choice(orders), random.choice(shapes)
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"
    head = text.encode() + b" " * random.randrange(64)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + content[128:]


def _read(read: Callable[[Path, Mapping[str, Any]], ImportedModel]) -> Callable[[Path, str], None]:
    return lambda folder, name: finish(read(folder / name, {}))


READERS: dict[str, Reader] = {
    "gguf": Reader(prepare_gguf, _read(import_gguf)),
    "safetensors": Reader(prepare_safetensors, lambda folder, name: finish(import_folder(folder / "model", {}))),
    "npz": Reader(prepare_npz, _read(import_npz)),
    "onnx": Reader(prepare_onnx, _read(import_onnx)),
    "stablehlo": Reader(prepare_stablehlo, _read(import_stablehlo)),
}
