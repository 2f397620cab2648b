"""What the tokenizer's files of a Hugging Face folder say: tokenizer, named tokens, BOS, chat template."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.fields import Fields
from cacheir_importers.huggingface.spelling import TOKENIZER_FILE, highest_id, read_spelling
from cacheir_importers.json_files import parse_object, read_file, read_object

KIND = "huggingface"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
TEMPLATE_FILE = "chat_template.jinja"
_MAX_CONFIG_BYTES = 16 << 20
_MAX_TEMPLATE_BYTES = 1 << 20
MAX_TOKENIZER_BYTES = 256 << 20
ADDED_TOKEN_FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """``ids`` has the id of each named token that the tokenizer knows, ``size`` is its highest id plus one.

    ``parts`` are (name, bytes) for the header hash.
    """

    source: TokenizerSource | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)
    size: int = 0
    add_bos: bool = False
    chat_template: str | None = None
    parts: tuple[tuple[str, bytes], ...] = ()
    notes: tuple[str, ...] = ()


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read tokenizer.json, else tekken.json, else tokenizer.model, and the files beside it."""
    parts: list[tuple[str, bytes]] = []

    def optional(name: str, limit: int) -> dict[str, Any]:
        if not (folder / name).exists():
            return {}
        values, content = read_object(folder / name, place=name, limit=limit)
        parts.append((name, content))
        return values

    config = Fields(optional(CONFIG_FILE, _MAX_CONFIG_BYTES), CONFIG_FILE)
    special = Fields(optional(SPECIAL_FILE, _MAX_CONFIG_BYTES), SPECIAL_FILE)
    template = _chat_template(folder, config, parts)
    texts = _named_tokens(special) | _named_tokens(config)
    path = folder / TOKENIZER_FILE
    if not path.exists():
        found = _other_tokenizer(folder, config, texts)
        return replace(found, chat_template=template, parts=(*parts, *found.parts))
    content = read_file(path, place=TOKENIZER_FILE, limit=MAX_TOKENIZER_BYTES)
    parsed = parse_object(content, place=TOKENIZER_FILE)
    parts.append((TOKENIZER_FILE, content))
    read_spelling(parsed)  # refuses by name what the tokenizer could not be built from
    highest_id(parsed)  # the shape of the file, checked
    added = _added_tokens(
        config, [token.get("content") for token in parsed.get("added_tokens") or [] if isinstance(token, dict)]
    )
    ids = _ids(parsed, added)
    before, after = _template_tokens(parsed)
    named = dict(texts)
    if before:
        named.setdefault("bos_token", before[0])
    return TokenizerFiles(
        source=TokenizerSource(
            kind=KIND,
            data={"special_tokens": sorted({*texts.values(), *_other_special(config)}), "added_tokens": added},
            files={TOKENIZER_FILE: path},
        ),
        special_tokens=texts,
        size=max([highest_id(parsed), *(token["id"] for token in added)]) + 1,
        ids={name: ids[text] for name, text in named.items() if text in ids},
        add_bos=bool(before) and named["bos_token"] in before,
        chat_template=template,
        parts=tuple(parts),
        notes=tuple(_post_processor_notes(config, named.get("bos_token"), before, after)),
    )


def _named_tokens(fields: Fields) -> dict[str, str]:
    found = {name: _token_text(fields, name, fields.get(name)) for name in _NAMED}
    return {name: text for name, text in found.items() if text is not None}


def _token_text(fields: Fields, name: str, value: object) -> str | None:
    """The text of a token that is given as text or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or (isinstance(value, str) and _is_text(value)):
        return value
    raise fields.wrong(name, "a token's text, or an object with its content")


def _is_text(value: str) -> bool:
    """Whether no half of a surrogate pair stands in it, which JSON can spell and no tokenizer takes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _other_special(config: Fields) -> Iterable[str]:
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(key)
        for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
            text = _token_text(config, key, item)
            if text is not None:
                yield text


def _other_tokenizer(folder: Path, config: Fields, texts: Mapping[str, str]) -> TokenizerFiles:
    """What tekken.json or tokenizer.model says; a note where there is neither, and the model takes token ids only."""
    # Imported here: it needs the tokenizers library, which folders with tokenizer.json wait for only when they run.
    from cacheir_importers.huggingface.other_tokenizers import find_other

    special = sorted({*texts.values(), *_other_special(config)})
    found = find_other(folder, special, lambda known: _added_tokens(config, known))
    if found is None:
        other = [name for name in ("vocab.json",) if (folder / name).exists()]
        reason = f"; {', '.join(other)} is not read" if other else ""
        note = f"there is no {TOKENIZER_FILE}, so the model takes token ids only{reason}"
        return TokenizerFiles(special_tokens=texts, notes=(note,))
    named = {**found.named, **texts}
    said = config.flag_or("add_bos_token", None)
    return TokenizerFiles(
        source=found.source,
        special_tokens=named,
        ids={name: found.ids[text] for name, text in named.items() if text in found.ids},
        size=found.size,
        add_bos=said is not False and named.get("bos_token") in found.ids,
        parts=(found.part,),
        notes=() if said is not None else (f"{CONFIG_FILE} does not say add_bos_token, and true was assumed",),
    )


def _added_tokens(config: Fields, known: Collection[str | None]) -> list[dict[str, Any]]:
    """Tokens of tokenizer_config.json that are not ``known``, by rising id."""
    section = config.section("added_tokens_decoder")
    if section is None:
        return []
    found = []
    for key in section:
        value = section[key]
        content = value.get("content") if isinstance(value, dict) else None
        if not key.isdecimal() or len(key) > 9 or not isinstance(content, str) or not _is_text(content):
            raise section.wrong(key, "an id with an object that has the token's content")
        if content not in known:
            flags = {name: bool(value.get(name)) for name in ADDED_TOKEN_FLAGS}
            found.append({"id": int(key), "content": content, **flags})
    return sorted(found, key=lambda token: token["id"])


def _ids(parsed: Mapping[str, Any], added: list[dict[str, Any]]) -> dict[str, int]:
    """Text -> id, for the tokens that have a name of their own."""
    vocabulary = parsed["model"]["vocab"]
    ids: dict[str, int] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    for token in [*(parsed.get("added_tokens") or []), *added]:
        if isinstance(token.get("content"), str):
            ids[token["content"]] = token["id"]
    return ids


def _template_tokens(parsed: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The special tokens that the post-processor puts before and after a text."""
    processor = parsed.get("post_processor")
    steps = [processor] if isinstance(processor, dict) else []
    if steps and steps[0].get("type") == "Sequence":
        steps = [step for step in steps[0].get("processors") or [] if isinstance(step, dict)]
    before: list[str] = []
    after: list[str] = []
    for step in steps:
        if step.get("type") != "TemplateProcessing":
            continue
        seen_text = False
        for piece in step.get("single") or []:
            if not isinstance(piece, dict):
                raise MalformedModelError(f"{TOKENIZER_FILE}: a piece of the post-processor is not an object")
            seen_text = seen_text or "Sequence" in piece
            token = piece.get("SpecialToken")
            if isinstance(token, dict) and isinstance(token.get("id"), str):
                (after if seen_text else before).append(token["id"])
    return before, after


def _post_processor_notes(config: Fields, bos: str | None, before: list[str], after: list[str]) -> Iterable[str]:
    """The post-processor alone decides what is added, as in transformers from version 5 on."""
    for name, tokens in (("add_bos_token", before), ("add_eos_token", after)):
        said = config.flag_or(name, None)
        if said is not None and said is not bool(tokens):
            yield f"{CONFIG_FILE} says {name} = {str(said).lower()}, and {TOKENIZER_FILE} does otherwise, which counts"
    other = [token for token in before if token != bos] + after
    if other:
        yield f"{TOKENIZER_FILE} adds {', '.join(other)} to texts, which prompts do not get"


def _chat_template(folder: Path, config: Fields, parts: list[tuple[str, bytes]]) -> str | None:
    """The chat template: chat_template.jinja, else the one in tokenizer_config.json (the default of several)."""
    if (folder / TEMPLATE_FILE).exists():
        content = read_file(folder / TEMPLATE_FILE, place=TEMPLATE_FILE, limit=_MAX_TEMPLATE_BYTES)
        parts.append((TEMPLATE_FILE, content))
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedModelError(f"{TEMPLATE_FILE} is not UTF-8: {error.reason}") from error
    value = config.get("chat_template")
    if value is None or isinstance(value, str):
        return value
    return default_template(value, CONFIG_FILE)


def default_template(value: object, place: str) -> str:
    """The template called ``default`` of a list of named ones, or the only one."""
    templates: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        name, template = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(template, str):
            raise MalformedModelError(f"{place}: 'chat_template' must be text or a list of names with templates")
        templates[name] = template
    if "default" in templates:
        return templates["default"]
    if len(templates) == 1:
        return next(iter(templates.values()))
    raise UnsupportedModelError(
        f"{place}: 'chat_template' has no template called 'default'; there are: {', '.join(templates) or 'none'}"
    )
