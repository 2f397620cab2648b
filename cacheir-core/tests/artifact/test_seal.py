"""A sealed file opens to what was sealed, and no changed byte, other spelling or other seal passes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.artifact.seal import digest, open_sealed, sealed_bytes
from cacheir.errors import ArtifactDamagedError
from cacheir.schedule.record_json import json_bytes

VALUES = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name != "seal"),
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.lists(st.integers(), max_size=4)),
    max_size=5,
)


@given(VALUES)
def test_what_was_sealed_comes_back(value: dict[str, object]) -> None:
    assert open_sealed(sealed_bytes(value), "file") == value


@given(VALUES, st.data())
def test_no_changed_byte_passes(value: dict[str, object], data: st.DataObject) -> None:
    sealed = sealed_bytes(value)
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = bytearray(sealed)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ArtifactDamagedError):
        open_sealed(bytes(changed), "file")


@pytest.mark.parametrize("seal", ["", digest(b"something else"), None, 7])
def test_another_seal_is_refused(seal: object) -> None:
    value = json.loads(sealed_bytes({"size": 3}))
    with pytest.raises(ArtifactDamagedError, match="its seal does not fit"):
        open_sealed(json_bytes({**value, "seal": seal}), "file")
    assert open_sealed(json_bytes(value), "file") == {"size": 3}


def test_another_spelling_of_the_same_value_is_refused() -> None:
    sealed = sealed_bytes({"size": 3})
    spelt = json.dumps(json.loads(sealed), indent=4).encode()
    with pytest.raises(ArtifactDamagedError, match="its seal does not fit"):
        open_sealed(spelt, "file")


@pytest.mark.parametrize("data", [b"[]", b"3", b"{", b"\xff"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactDamagedError):
        open_sealed(data, "file")
