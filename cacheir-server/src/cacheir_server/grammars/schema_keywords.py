"""Which keywords of JSON Schema are enforced; every other is refused with its place, and none is weakened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cacheir.errors import RequestError

# What llguidance enforces (its documentation of JSON Schema support), and what says nothing about an instance.
_ENFORCED = frozenset(
    """$defs $ref additionalProperties allOf anyOf const definitions enum exclusiveMaximum exclusiveMinimum format items
    maximum maxItems maxLength minimum minItems minLength multipleOf oneOf pattern patternProperties prefixItems
    properties required type""".split()
)
_SAYS_NOTHING = frozenset(
    """$comment $id $schema contentEncoding contentMediaType default deprecated description examples readOnly title
    writeOnly""".split()
)
# Of these keywords the values, and not the names, are schemas.
_BY_NAME = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS = frozenset({"additionalProperties", "items"})
MAX_DEPTH = 64


def check_keywords(schema: Any) -> None:
    """``RequestError`` with the JSON pointer (RFC 6901) of the first keyword that is not enforced."""
    for pointer, keyword in _keywords(schema, "", 0):
        raise RequestError(
            f"the JSON schema's keyword {keyword!r} at {pointer or '/'} cannot be enforced",
            hint="leave it out, and check the answer for it yourself",
        )


def _keywords(schema: Any, pointer: str, depth: int) -> Iterator[tuple[str, str]]:
    """Pointer and name of each keyword that is not enforced."""
    if isinstance(schema, bool):
        return
    if depth > MAX_DEPTH:
        raise RequestError(f"the JSON schema is nested more than {MAX_DEPTH} deep at {pointer[:80]}")
    if not isinstance(schema, dict):
        raise RequestError(f"the JSON schema at {pointer or '/'} must be an object or a boolean, not {schema!r:.60}")
    for keyword, value in schema.items():
        place = f"{pointer}/{_escaped(keyword)}"
        if keyword in _SAYS_NOTHING or (keyword == "uniqueItems" and value is False):
            continue
        if keyword not in _ENFORCED:
            yield place, keyword
        elif keyword in _BY_NAME and isinstance(value, dict):
            for name, part in value.items():
                yield from _keywords(part, f"{place}/{_escaped(name)}", depth + 1)
        elif keyword in _LISTS and isinstance(value, list):
            for number, part in enumerate(value):
                yield from _keywords(part, f"{place}/{number}", depth + 1)
        elif keyword in _SCHEMAS:
            yield from _keywords(value, place, depth + 1)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
