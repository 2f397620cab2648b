"""Mixed recipes: a JSON file that says by patterns of weight keys which quantiser decides about a weight.

    {"rules": [{"match": "layers.*.ffn.down", "quant": "int8"},
               {"match": "layers.0.*", "quant": "keep"}],
     "rest": "int4"}

A pattern is as in a shell, over canonical keys; the first rule that matches decides, ``rest`` about all others.
``quant`` is a quantiser, a format, or ``keep`` for a weight that stays as it is stored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheir.errors import UsageError

KEEP = "keep"
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class Rule:
    """Weights whose key ``match`` fits are for ``quant`` to decide about."""

    match: str
    quant: str


@dataclass(frozen=True)
class Recipe:
    """The rules in order, and what decides about weights that none matches."""

    rules: tuple[Rule, ...]
    rest: str = KEEP

    @property
    def text(self) -> str:
        """The one spelling of the recipe, which goes into the program key: JSON in a line."""
        rules = [{"match": rule.match, "quant": rule.quant} for rule in self.rules]
        return json.dumps({"rest": self.rest, "rules": rules}, sort_keys=True)


def is_recipe(quant: str) -> bool:
    """Whether the text of a ``quant`` option is a recipe and no name."""
    return quant.startswith("{")


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file. UsageError for one that cannot be read or says something else."""
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path} has more than {_LARGEST} bytes, which no recipe needs")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the quantisation recipe {path} cannot be read: {error}") from error
    return parse_recipe(text, str(path))


def parse_recipe(text: str, where: str) -> Recipe:
    """The recipe that ``text`` spells; UsageError with the place for another form."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}", hint="docs/quantisation.md shows a recipe") from error
    if not isinstance(value, dict) or set(value) - {"rules", "rest"} or not isinstance(value.get("rules", []), list):
        raise UsageError(f'{where} must be {{"rules": [...], "rest": ...}}', hint="docs/quantisation.md shows a recipe")
    rules = []
    for number, rule in enumerate(value.get("rules", [])):
        if not isinstance(rule, dict) or set(rule) != {"match", "quant"} or not all(map(_is_text, rule.values())):
            raise UsageError(f'{where}: rule {number} must be {{"match": PATTERN, "quant": NAME}}')
        rules.append(Rule(rule["match"], rule["quant"]))
    rest = value.get("rest", KEEP)
    if not _is_text(rest):
        raise UsageError(f'{where}: "rest" must name a quantiser, a format or {KEEP}')
    return Recipe(tuple(rules), rest)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
