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


_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# A word with its case: capitals that lead to small letters, or capitals alone; letters without case are both.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITALISED, _CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CAPITALISED}|{_CAPITALS}|\p{{N}}|{_SLASHED}"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = rf"{_CAPITALISED}{_SUFFIX}|{_CAPITALS}{_SUFFIX}|\p{{N}}{{1,3}}|{_SLASHED}"
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The letters with a case that DeepSeek LLM's own tokenizer lists: those of an older Unicode, so no class names them.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
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
_GPT2_ALONE = PreTokenizer((_GPT2,))
_LLAMA3_MERGES = PreTokenizer((_LLAMA3,))
_LLAMA_BPE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_NFC = PreTokenizer((_QWEN2,), normalize="NFC")

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "command-r": _DIGIT_BY_DIGIT,
    "dbrx": _LLAMA3_MERGES,
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", rf"\s?[{_CASED}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", _HAN, r"\p{N}+")
    ),
    "deepseek-r1-qwen": _QWEN2_NFC,
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_ALONE,
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "llama-bpe": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "mpt": _GPT2_ALONE,
    "olmo": _GPT2_ALONE,
    "phi-2": _GPT2_ALONE,
    "qwen2": _QWEN2_NFC,
    "qwen35": PreTokenizer((_QWEN35,)),
    "refact": _DIGIT_BY_DIGIT,
    "smaug-bpe": _LLAMA3_MERGES,
    "smollm": _DIGIT_BY_DIGIT,
    "stablelm2": PreTokenizer((_QWEN2,)),
    "starcoder": _DIGIT_BY_DIGIT,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
}
