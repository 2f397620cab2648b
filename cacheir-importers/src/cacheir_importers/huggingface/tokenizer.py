"""Builds the tokenizer of a Hugging Face folder from its tokenizer.json, through the tokenizers library."""

from __future__ import annotations

from tokenizers import Tokenizer

from cacheir.errors import MalformedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.huggingface.added_tokens import add_tokens, make_special
from cacheir_importers.huggingface.spelling import TOKENIZER_FILE, highest_id, read_spelling, unknown_id
from cacheir_importers.huggingface.tokenizer_files import MAX_TOKENIZER_BYTES
from cacheir_importers.json_files import parse_object, read_file
from cacheir_importers.library_tokenizer import LibraryTokenizer


def load_tokenizer(source: TokenizerSource) -> LibraryTokenizer:
    """The tokenizer of ``source.files["tokenizer.json"]``.

    ``source.data["special_tokens"]`` lists texts that tokenizer_config.json makes control tokens; ``added_tokens``
    lists tokens (id, content, flags) that only it has. Raises MalformedModelError for a broken file,
    UnsupportedModelError for a decoder whose bytes are not known.
    """
    path = source.files[TOKENIZER_FILE]
    content = read_file(path, place=TOKENIZER_FILE, limit=MAX_TOKENIZER_BYTES)
    parsed = parse_object(content, place=TOKENIZER_FILE)
    spelling = read_spelling(parsed)
    library = _library_tokenizer(content)
    add_tokens(library, source.data.get("added_tokens", ()), TOKENIZER_FILE)
    make_special(library, source.data.get("special_tokens", ()))
    added_tokens = library.get_added_tokens_decoder()
    return LibraryTokenizer(
        library,
        vocab_size=max([highest_id(parsed), *added_tokens]) + 1,
        literal={token: added.content for token, added in added_tokens.items()},
        control=[token for token, added in added_tokens.items() if added.special],
        to_bytes=spelling.to_bytes,
        from_byte=spelling.from_byte,
        unknown=unknown_id(parsed),
        strips_leading_space=spelling.strips_leading_space,
    )


def _library_tokenizer(content: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_str(content.decode("utf-8"))
    except BaseException as error:
        # The library raises nothing narrower than Exception, and panics on some rules it reads: that is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise MalformedModelError(f"{TOKENIZER_FILE} is refused by the tokenizers library: {error}") from error
