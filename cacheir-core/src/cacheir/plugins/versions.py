"""Compares version numbers with requirement specifiers such as ``>=1.2,<2``.

Order follows PEP 440 for the forms that occur in requirements: release numbers, development and pre-releases before
their release, post-releases after it, local versions ignored.
"""

from __future__ import annotations

import re


def satisfies(version: str, specifier: str) -> bool:
    """Whether ``version`` is in ``>=1.2,<2``. A clause that is not understood is taken as met."""
    return all(_clause_holds(version, clause) for clause in specifier.split(",") if clause)


def _clause_holds(version: str, clause: str) -> bool:
    match = re.fullmatch(r"(===|~=|==|!=|<=|>=|<|>)(.+)", clause)
    if match is None or not re.match(r"v?\d", version):
        return True
    operator, wanted = match.groups()
    if operator in ("==", "!=") and wanted.endswith(".*"):
        return _begins(version, _release(wanted[:-2])) == (operator == "==")
    if operator == "~=":
        return _key(version) >= _key(wanted) and _begins(version, _release(wanted)[:-1])
    have, want = _key(version), _key(wanted)
    results = {
        "===": version == wanted,
        "==": have == want,
        "!=": have != want,
        "<=": have <= want,
        ">=": have >= want,
        "<": have < want,
        ">": have > want,
    }
    return results[operator]


def _begins(version: str, prefix: tuple[int, ...]) -> bool:
    """Whether a release begins with ``prefix``, zeros added where it is shorter."""
    return (_release(version) + (0,) * len(prefix))[: len(prefix)] == prefix


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def _key(version: str) -> tuple[tuple[int, ...], int, int]:
    """A key that sorts as PEP 440 does: development and pre-releases before the release, post-releases after it."""
    release = list(_release(version))
    while release and release[-1] == 0:
        release.pop()
    public = version.partition("+")[0].lower()
    ranks = (("dev", -4), ("rc", -1), ("b", -2), ("a", -3), ("post", 1))
    for mark, rank in ranks:
        match = re.search(rf"(?<![a-z]){mark}[a-z]*\.?(\d*)", public)
        if match:
            return tuple(release), rank, int(match.group(1) or 0)
    return tuple(release), 0, 0
