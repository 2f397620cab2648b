"""Structured output on a model of random logits: every answer that ends is valid, and nothing is silently weakened."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.testing.fake_model import FakeExecutor

SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-50, 50),
        st.integers(0, 99),
    ),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.integers(0, 9) | st.text("abc", max_size=3), min_size=1, max_size=3, unique_by=repr),
    ),
    st.just({"type": "string", "pattern": "^[a-f]{1,4}$"}),
    st.builds(lambda value: {"const": value}, st.integers(0, 99) | st.booleans()),
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(
            lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            lambda parts, needed: {
                "type": "object",
                "properties": parts,
                "required": sorted(parts)[: needed % (len(parts) + 1)],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "b", "c d", 'q"']), inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def shared(make_shared):
    """One server for all: what it costs is its tokenizer's table."""
    return make_shared(FakeExecutor(max_tokens=64), max_seq=2048)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 10**6))
def test_every_output_is_valid_by_its_schema(shared, schema, seed):
    answer = shared.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": f"{seed}"}],
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        max_tokens=1500,
        seed=seed,
        temperature=1.5,
    )
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
        ({"not": {"type": "string"}}, "/not"),
        ({"properties": {"a/b": {"items": {"contains": {}}}}}, "/properties/a~1b/items/contains"),
        ({"anyOf": [{"type": "null"}, {"if": {}, "then": {}}]}, "/anyOf/1/if"),
        ({"$defs": {"x": {"propertyNames": {}}}}, "/$defs/x/propertyNames"),
        ({"unevaluatedProperties": False}, "/unevaluatedProperties"),
        ({"x-guidance": {}}, "/x-guidance"),
        ({"properties": 5}, ""),
        ({"type": "nonsense"}, ""),
        ({"type": "string", "format": "nonsense"}, ""),
        ({"type": "string", "pattern": "("}, ""),
        ({"$ref": "#/nowhere"}, ""),
        ({"$ref": "http://example.com/schema"}, ""),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(shared, schema, pointer):
    answer = shared.post("/v1/completions", prompt="a", structured_outputs={"json": schema}, max_tokens=5)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "structured_outputs"
    assert pointer in error["message"]


@pytest.mark.parametrize(
    "form",
    [
        {"regex": r"[^\s\S]"},
        {"grammar": "start: start"},
        {"json": {"$ref": "#"}},
        {"json": {"type": "integer", "minimum": -(10**300)}},
        {"json": False},
    ],
)
def test_a_form_that_no_text_fits_is_refused_before_the_engine_sees_it(shared, form):
    answer = shared.post("/v1/completions", prompt="a", structured_outputs=form, max_tokens=5)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "structured_outputs"
    assert "cannot be enforced" in error["message"] and "\n" not in error["message"] and len(error["message"]) < 200


def ask(server: Any, **form: Any) -> str:
    answer = server.post(
        "/v1/completions", prompt="ab", structured_outputs=form, max_tokens=400, temperature=1.2, seed=3
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_the_other_forms(shared):
    assert re.fullmatch(r"[0-9]{2,5}-(yes|no)", ask(shared, regex=r"[0-9]{2,5}-(yes|no)"))
    assert ask(shared, choice=["red", 'gr"een', "blue"]) in ["red", 'gr"een', "blue"]
    assert re.fullmatch(r"(x|y){1,3};", ask(shared, grammar='start: item{1,3} ";"\nitem: "x" | "y"'))
    found = ask(
        shared,
        json={
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "additionalProperties": False,
        },
    )
    assert set(json.loads(found)) <= {"a"}


def test_forms_exclude_each_other_and_must_make_sense(shared):
    for form in (
        {"regex": "a", "choice": ["b"]},
        {"choice": []},
        {"regex": "("},
        {"grammar": "begin: 'x'"},
        {"choice": [""]},
    ):
        assert shared.post("/v1/completions", prompt="a", structured_outputs=form).status_code == 400
    bad = shared.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "a"}], response_format={"type": "json_schema"}
    )
    assert bad.status_code == 400 and "json_schema" in bad.json()["error"]["param"]


def test_two_choices_have_matchers_of_their_own(shared):
    answer = shared.post(
        "/v1/completions", prompt="ab", n=3, structured_outputs={"regex": "[a-z]{5}"}, max_tokens=9, seed=1
    )
    texts = [choice["text"] for choice in answer.json()["choices"]]
    assert all(re.fullmatch("[a-z]{5}", text) for text in texts) and len(set(texts)) > 1
