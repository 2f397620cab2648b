"""What is committed names no registry, no machine, and asks no index for a name that nobody owns there."""

from __future__ import annotations

import re
from pathlib import Path

# Put together here so that this file does not hold what it looks for.
REGISTRIES = [f"{name}.{top}" for name, top in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))]
MACHINE_PATH = re.compile(r"(?<![\w.)}*$-])/(?:work|root|opt|home|Users)/\w")
INDEX_OPTIONS = ["--index" + "-url", "--extra-index" + "-url", "--find" + "-links", "--trusted" + "-host"]

INSTALLER = r"\b(?:pip3?|pipx|uv pip|uv)\s+(?:install|add|run|wheel|download)"
INSTALL = re.compile(INSTALLER + r"\s+(?P<words>[^\n`|;&)#]*)")
SIBLING = re.compile(r"[\"']?cacheir(-[a-z]+)?(\[[a-z,]*\])?([<>=!~].*)?[\"'.,:]*")


def texts(files: list[Path]) -> list[tuple[Path, str]]:
    """The committed files that are text."""
    found = []
    for path in files:
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            found.append((path, data.decode("utf-8")))
    return found


def test_no_registry_host_and_no_path_of_a_machine(committed_files: list[Path], root: Path) -> None:
    bad = [
        f"{path.relative_to(root)}: {word}"
        for path, text in texts(committed_files)
        for word in (*REGISTRIES, *INDEX_OPTIONS)
        if word in text
    ]
    bad += [
        f"{path.relative_to(root)}: {match[0]}"
        for path, text in texts(committed_files)
        for match in MACHINE_PATH.finditer(text)
    ]
    assert not bad


# A recorded answer is kept as the program that made it wrote it.
RECORDED = ("golden", "raw")


def asks_an_index(text: str) -> list[str]:
    """The words of install commands in ``text`` that an index would be asked for under a name of this tree."""
    text = "\n".join(line for line in text.splitlines() if " not in " not in line)  # a test that forbids one
    return [word for match in INSTALL.finditer(text) for word in match["words"].split() if SIBLING.fullmatch(word)]


def test_no_command_asks_an_index_for_a_name_of_this_tree(committed_files: list[Path], root: Path) -> None:
    bad = [f"{path.relative_to(root)}: {word}" for path, text in texts(committed_files) for word in asks_an_index(text)]
    assert not bad


def test_a_machine_path_is_told_from_a_path_inside_a_tree() -> None:
    assert MACHINE_PATH.search("see " + "/" + "home/someone/model")
    assert not MACHINE_PATH.search("tests/" + "root/file and ./home/file and {root}/work/file")


def test_the_search_finds_what_it_looks_for() -> None:
    install = "pip " + "install "
    assert asks_an_index(install + "cacheir-core") == ["cacheir-core"]
    assert asks_an_index(f"run `{install}-U 'cacheir-server>=0.1'`") == ["'cacheir-server>=0.1'"]
    assert asks_an_index(install + "-q cacheir-cpu==0.1.0 numpy") == ["cacheir-cpu==0.1.0"]
    assert asks_an_index(install + "cacheir[server].") == ["cacheir[server]."]
    assert asks_an_index(install + "./cacheir-core -e ./cacheir-cpu .[dev] numpy") == []


def test_text_files_end_their_lines_one_way(committed_files: list[Path], root: Path) -> None:
    bad = [
        str(path.relative_to(root))
        for path, text in texts(committed_files)
        if text and ("\r" in text or not text.endswith("\n")) and not set(path.parts) & set(RECORDED)
    ]
    assert not bad
