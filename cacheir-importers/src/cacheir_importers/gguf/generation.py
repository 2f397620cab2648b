"""What a GGUF file's metadata says about generating: BOS, the ids that end a text, the chat template."""

from __future__ import annotations

from cacheir.models.imported import GenerationDefaults, TokenizerSource
from cacheir_importers.fields import Fields
from cacheir_importers.gguf.pre_tokenizers import PRE_TOKENIZERS
from cacheir_importers.gguf.tokenizer_arrays import SENTENCEPIECE

# Control tokens that end a turn in well-known chat formats. Converters often leave out eot_token_id, and the model
# would then talk on behind its answer.
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def read_generation(metadata: Fields, tokenizer: TokenizerSource | None) -> tuple[GenerationDefaults, list[str]]:
    """The defaults, and notes on what was derived. An id outside the vocabulary is left out, with a note."""
    notes: list[str] = []
    tokens: list[str] = tokenizer.data["tokens"] if tokenizer else []

    def token_id(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        token = metadata.whole_or(key, None, least=0, most=2**32 - 1)
        if token is not None and tokenizer is not None and token >= len(tokens):
            notes.append(f"{key} {token} is outside the vocabulary of {len(tokens)} and was not used")
            return None
        return token

    ends = [token_id(name) for name in ("eos", "eot", "eom")]
    if ends[1] is None and tokenizer is not None:
        for token in tokenizer.data["special"]:
            if tokens[token] in _TURN_ENDS and token not in ends:
                notes.append(f"{tokens[token]} ends a text by its name: tokenizer.ggml.eot_token_id is absent")
                ends.append(token)
    named = {name: token_id(key) for name, key in _NAMED.items()}
    bos = named["bos_token"]
    add_bos = metadata.flag_or("tokenizer.ggml.add_bos_token", None)
    if add_bos is None and tokenizer is not None:
        # Where the file does not say: SentencePiece models begin with BOS, and others as the rule of their split says.
        rule = PRE_TOKENIZERS.get(tokenizer.data.get("pre", ""))
        add_bos = tokenizer.kind == SENTENCEPIECE if rule is None else rule.add_bos
    if metadata.flag_or("tokenizer.ggml.add_eos_token", None):
        notes.append("tokenizer.ggml.add_eos_token = true ends texts for training: prompts do not get that token")
    defaults = GenerationDefaults(
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(token for token in ends if token is not None)),
        add_bos=bool(add_bos) and bos is not None,
        chat_template=metadata.text_or("tokenizer.chat_template", None),
        special_tokens={name: tokens[token] for name, token in named.items() if token is not None and tokens},
    )
    return defaults, notes
