"""The tokenizer of the tiny models: byte-level BPE with a few merges, control tokens and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from cacheir.errors import UsageError

BOS, EOS, TURN = "<|begin|>", "<|end|>", "<|turn|>"
BOS_ID, EOS_ID = 0, 1
_FEWEST = 256 + 3
_MORE_THAN_THE_TEXT_HAS = 10_000  # the trainer takes memory for as many as it is told

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|turn|>' + message['role'] + '\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"
)

# What the merges are learnt from. Only its letters matter: frequent pairs become tokens.
_TEXT = """
A compiler reads a model and writes down what the machine has to do: which numbers to load, which kernels to run, and in
what order. The runtime then does it, one step after another, and keeps the keys and values of every token it has seen
in pages, so that the next token costs no more than it must. When two requests begin with the same words they share the
pages of those words; when a request ends its pages go back to the pool and serve another one. Nothing of this changes
the answer. The same prompt gives the same tokens, whether it is read in one piece or in many, alone or beside others,
and a test says so for each of them. Small things are tried first: a graph of ten lines, a model of two layers, a
sentence of five words. If they are right, then the large ones have a chance to be right as well. If they are wrong,
the small one shows where: at which pass, in which op, on which line. That is why this model is tiny and its weights are
random. It knows no language and has nothing to say, yet every mistake in the machine that runs it changes its tokens.
"""


def train_tokenizer(vocab: int) -> Tokenizer:
    """A tokenizer with ``vocab`` tokens; the control tokens are the first ids.

    UsageError for a vocabulary that cannot hold the bytes, or is larger than the text has pairs for.
    """
    if vocab < _FEWEST:
        raise UsageError(f"a byte-level vocabulary needs at least {_FEWEST} tokens, not {vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab, _MORE_THAN_THE_TEXT_HAS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(text, special=True) for text in (BOS, EOS, TURN)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT.split("\n"), trainer)
    if tokenizer.get_vocab_size() != vocab:
        raise UsageError(f"a tiny tokenizer has at most {tokenizer.get_vocab_size()} tokens, not {vocab}")
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    # Not Tokenizer.save: its errors are no OSError, and it takes no name that is not UTF-8.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "add_bos_token": False,
        "chat_template": _TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
