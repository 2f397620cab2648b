"""What a Hugging Face folder says about generating: BOS, every id that ends a text, sampling values."""

from __future__ import annotations

from cacheir.models.imported import GenerationDefaults
from cacheir_importers.fields import Fields
from cacheir_importers.huggingface.tokenizer_files import TokenizerFiles


def read_generation(
    config: Fields, generation: Fields, tokenizer: TokenizerFiles, vocab_size: int
) -> tuple[GenerationDefaults, list[str]]:
    """The defaults, and notes on what was left out.

    The ids that end a text are the union of generation_config.json's, config.json's and the tokenizer's: chat models
    end turns with a token that only one of them names. ``vocab_size`` is the model's.
    """
    notes: list[str] = []
    eos: list[int] = []
    for fields in (generation, config):
        eos += _ids(fields, "eos_token_id", vocab_size, notes)
    if "eos_token" in tokenizer.ids:
        eos.append(tokenizer.ids["eos_token"])
    bos = [*_ids(generation, "bos_token_id", vocab_size, notes), *_ids(config, "bos_token_id", vocab_size, notes)]
    bos_id = tokenizer.ids.get("bos_token", bos[0] if bos else None)
    samples = generation.flag_or("do_sample", None) is not False
    temperature = generation.number_or("temperature", None, least=0.0)
    top_k = generation.whole_or("top_k", None, least=0)
    top_p = generation.number_or("top_p", None, least=0.0, most=1.0)
    if not samples and (temperature, top_k, top_p) != (None, None, None):
        notes.append("generation_config.json says do_sample = false, so its sampling values were not used")
    unread = sorted(set(generation.unread()) - _NO_INFLUENCE)
    if unread:
        notes.append(f"generation_config.json fields that nothing used: {', '.join(unread)}")
    defaults = GenerationDefaults(
        bos_id=bos_id,
        eos_ids=tuple(dict.fromkeys(eos)),
        add_bos=tokenizer.add_bos and bos_id is not None,
        temperature=temperature if samples else None,
        top_k=top_k if samples else None,
        top_p=top_p if samples else None,
        chat_template=tokenizer.chat_template,
        special_tokens=tokenizer.special_tokens,
    )
    return defaults, notes


_NO_INFLUENCE = frozenset(
    (
        "_from_model_config",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "transformers_version",
        "use_cache",
    )
)


def _ids(fields: Fields, key: str, vocab_size: int, notes: list[str]) -> list[int]:
    """The ids of a field that holds one id, a list of them, or null."""
    value = fields.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise fields.wrong(key, "an id or a list of ids")
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        notes.append(f"{fields.place}: {key} {outside} lie outside the vocabulary of {vocab_size} and were not used")
    return [token for token in ids if 0 <= token < vocab_size]
