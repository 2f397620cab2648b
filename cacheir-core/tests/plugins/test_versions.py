"""Version order and specifiers against the ``packaging`` library, which pytest brings along."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from cacheir.plugins.versions import satisfies

RELEASE = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
SUFFIX = st.sampled_from(["", "", "", "a1", "b2", "rc1", ".dev3", ".post1", "rc2", "a0"])
VERSION = st.tuples(RELEASE, SUFFIX).map("".join)
CLAUSE = st.one_of(
    st.tuples(st.sampled_from(["==", "!=", "<=", ">="]), VERSION).map("".join),
    st.tuples(st.sampled_from(["<", ">"]), RELEASE).map("".join),
    st.tuples(st.sampled_from(["==", "!="]), RELEASE).map(lambda pair: f"{pair[0]}{pair[1]}.*"),
    RELEASE.filter(lambda text: "." in text).map("~={}".format),
)


def plain(version: str) -> bool:
    return not any(mark in version for mark in ("a", "b", "rc", "dev", "post"))


@settings(max_examples=400)
@given(VERSION, st.lists(CLAUSE, max_size=2))
def test_as_packaging_says(version: str, clauses: list[str]) -> None:
    # PEP 440 keeps `<2` from taking 2's own pre-releases, and `>1` its post-releases; a reader of an error message
    # does not miss that rule, so only plain versions are compared with those.
    if any(clause[0] in "<>" and clause[1] != "=" for clause in clauses) and not plain(version):
        return
    specifier = ",".join(clauses)
    assert satisfies(version, specifier) == SpecifierSet(specifier).contains(version, prereleases=True)


@pytest.mark.parametrize(
    "version, specifier, holds",
    [
        ("2.1.0+cpu", ">=2.1", True),
        ("2.0.9+cu121", ">=2.1", False),
        ("1.26.4", ">=1.26,<3", True),
        ("3.0.0", ">=1.26,<3", False),
        ("1.0", "", True),
        ("unknown", ">=1", True),
        ("1.0", "@ file:///x", True),
        ("1.10", ">=1.9", True),
        ("1.0", "===1.0", True),
        ("1.0.0", "===1.0", False),
    ],
)
def test_forms_that_occur(version: str, specifier: str, holds: bool) -> None:
    assert satisfies(version, specifier) is holds
