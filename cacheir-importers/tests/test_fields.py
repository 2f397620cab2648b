"""A configuration that remembers what was read and what was assumed."""

from __future__ import annotations

import pytest

from cacheir.errors import MalformedModelError
from cacheir_importers.fields import Fields, as_fields


def test_what_was_read_and_what_was_not() -> None:
    fields = Fields({"a": 1, "b": 2, "c": {"x": 1, "y": 2}, "d": None, "e": 5}, "config.json")
    assert fields.whole("a") == 1
    section = fields.section("c")
    assert section is not None and section.whole("x") == 1 and fields.section("c") is section
    fields.ignore("e", "not there")
    assert fields.unread() == ("b", "c.y", "d")
    assert fields.section("d") is None and fields.section("nothing") is None


def test_what_was_assumed() -> None:
    fields = Fields({"a": None, "b": 3}, "config.json")
    assert (fields.whole_or("a", 7), fields.whole_or("b", 8), fields.flag_or("c", True)) == (7, 3, True)
    assert fields.text_or("d", None) is None
    assert fields.assumed() == {"a": 7, "c": True}


def test_numbers_are_checked_and_the_field_is_named() -> None:
    fields = Fields({"n": 0, "f": True, "t": "x" * 100, "big": 10**400}, "config.json")
    for call, problem in [
        (lambda: fields.whole("n"), "config.json: field 'n' must be a whole number from 1 to 2147483647, not 0"),
        (lambda: fields.whole("missing"), "config.json: field 'missing' is missing"),
        (lambda: fields.number("missing"), "field 'missing' is missing"),
        (lambda: fields.number("f"), "'f' must be a finite number, not True"),
        (lambda: fields.number("big"), "'big' must be a finite number"),
        (lambda: fields.flag_or("n", False), "'n' must be true or false, not 0"),
        (lambda: fields.texts_or("t", None), r"'t' must be a list of texts, not 'x+\.\.\."),
        (lambda: fields.section("t"), "'t' must be an object"),
    ]:
        with pytest.raises(MalformedModelError, match=problem):
            call()


def test_fields_are_not_wrapped_twice() -> None:
    fields = Fields({"a": 1}, "here")
    assert as_fields(fields, "there") is fields
    assert as_fields({"a": 1}, "there").place == "there"
