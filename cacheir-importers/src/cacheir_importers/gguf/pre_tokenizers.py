"""How a GGUF file's ``tokenizer.ggml.pre`` splits text into words before BPE.

Sources: llama.cpp's vocabulary code for what each name means, and for each name the tokenizer.json of a model that has
it, which is what the model was trained with. A name that is not here is refused: a near miss gives other ids.
"""

from __future__ import annotations

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """``patterns`` are applied one after the other, each to the pieces that the ones before it left.

    ``normalize`` is a Unicode normal form or "". ``ignore_merges``: a word that is a token as a whole is that token,
    whatever the merges say. ``add_bos`` is what holds where the file does not say.
    """

    patterns: tuple[str, ...]
    normalize: str = ""
    ignore_merges: bool = False
    add_bos: bool = False


_DIGIT_BY_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA_BPE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "qwen2": PreTokenizer((_QWEN2,), normalize="NFC"),
    "refact": _DIGIT_BY_DIGIT,
    "smollm": _DIGIT_BY_DIGIT,
    "starcoder": _DIGIT_BY_DIGIT,
}
