"""The scan of metadata folders, against ``importlib.metadata`` on this environment and on folders made here."""

from __future__ import annotations

import configparser
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.plugins.distributions import (
    entry_points,
    installed,
    normalise,
    parse_entry_points,
    requirements,
    summary,
)


def make(folder: Path, name: str, version: str, points: str = "", extra: str = "") -> Path:
    """A ``.dist-info`` folder."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}\n\nName: body\n")
    if points:
        (info / "entry_points.txt").write_text(points)
    return info


def test_this_environment_as_importlib_metadata_sees_it() -> None:
    ours = {distribution.name: distribution.version for distribution in installed()}
    theirs = {normalise(found.metadata["Name"]): found.version for found in metadata.distributions()}
    assert set(ours) == set(theirs)
    points = {(point.name, point.target, point.distribution, point.version) for point in entry_points()}
    expected = {
        (p.name, p.value, p.dist.name, p.dist.version) for p in metadata.entry_points(group="cacheir") if p.dist
    }
    assert points == expected
    assert expected, "cacheir-core is not installed here, so this test shows nothing"


def test_every_requirement_as_importlib_metadata_sees_it() -> None:
    for distribution in installed():
        theirs = metadata.requires(distribution.name) or []
        assert [line.split(";")[0].strip() for line in requirements(distribution)] == [
            line.split(";")[0].strip() for line in theirs
        ]


def test_a_licence_with_lines_of_spaces_does_not_end_the_headers(tmp_path: Path) -> None:
    info = make(tmp_path, "long-licence", "1")
    (info / "METADATA").write_text(
        "Name: x\nLicense: One\n        \n        Two\nRequires-Dist: a>=1\n\nRequires-Dist: b\n"
    )
    (distribution,) = installed([str(tmp_path)])
    assert requirements(distribution) == ("a>=1",)


def test_the_first_on_the_path_wins(tmp_path: Path) -> None:
    make(tmp_path / "a", "Some.Plugin", "2", "[cacheir]\nsome = a.b\n")
    make(tmp_path / "b", "some-plugin", "1", "[cacheir]\nsome = c.d\n")
    path = [str(tmp_path / "absent"), str(tmp_path / "a"), str(tmp_path / "b")]
    (point,) = entry_points(installed(path))
    assert (point.name, point.target, point.distribution, point.version) == ("some", "a.b", "Some.Plugin", "2")


def test_folders_without_entry_points_or_metadata(tmp_path: Path) -> None:
    make(tmp_path, "plain", "1")
    (tmp_path / "empty-2.dist-info").mkdir()
    (tmp_path / "x-1.dist-info").write_text("a file with a folder's name")
    odd = make(tmp_path, "odd", "3", "[cacheir]\nno equals sign\n= nothing\n")
    (odd / "METADATA").write_bytes(b"\xff\xfe\x00 not text")
    assert {distribution.name for distribution in installed([str(tmp_path)])} == {"plain", "empty", "x", "odd"}
    assert [point.target for point in entry_points(installed([str(tmp_path)]))] == ["nothing"]


def test_an_egg_info_folder(tmp_path: Path) -> None:
    info = tmp_path / "old_style-1.5-py3.11.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Name: old-style\nVersion: 1.5\nSummary: Old.\n")
    (info / "entry_points.txt").write_text("[cacheir]\nold = old.plugin\n")
    (point,) = entry_points(installed([str(tmp_path)]))
    assert (point.name, point.distribution, point.version) == ("old", "old-style", "1.5")
    assert summary(point.folder) == "Old."


def test_a_wheel_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "zipped-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("zipped-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.0\n")
        archive.writestr("zipped-1.0.dist-info/entry_points.txt", "[cacheir]\nzipped = zipped.plugin\n")
    monkeypatch.syspath_prepend(wheel)
    assert ("zipped", "zipped.plugin") in {(point.name, point.target) for point in entry_points()}


def test_extras_of_a_target_are_cut_off() -> None:
    text = "[console_scripts]\nx = y:z\n[cacheir]\n# a comment\n; another\na = b.c [extra, more]\n  d = e : f\n"
    assert parse_entry_points(text) == [("a", "b.c"), ("d", "e:f")]


WORD = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
SECTIONS = st.dictionaries(
    st.sampled_from(["cacheir", "console_scripts", "other"]), st.dictionaries(WORD, WORD, max_size=4), max_size=3
)


@given(SECTIONS)
def test_parsing_as_configparser_does(sections: dict[str, dict[str, str]]) -> None:
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in pairs.items())
        for name, pairs in sections.items()
    )
    parser = configparser.ConfigParser(delimiters="=")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    expected = list(parser["cacheir"].items()) if parser.has_section("cacheir") else []
    assert parse_entry_points(text) == expected


@given(st.text())
def test_any_text_is_parsed_or_left(text: str) -> None:
    for name, target in parse_entry_points(text):
        assert isinstance(name, str) and isinstance(target, str)
