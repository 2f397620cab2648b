"""docs/errors.md has one row for each error class, with the class's own base, exit code and HTTP status."""

from __future__ import annotations

import inspect
from pathlib import Path

from cacheir import errors


def rows(root: Path) -> dict[str, list[str]]:
    """The table of docs/errors.md: class name to the cells after it."""
    lines = (root / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line[:3] == "| `"]
    names = [each[0] for each in cells]
    assert len(names) == len(set(names)), "a class has two rows"
    return {each[0]: each[1:] for each in cells}


def classes() -> dict[str, type[errors.CacheIRError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.CacheIRError)
    }


def test_docs_name_every_error_and_no_other(root: Path) -> None:
    assert set(rows(root)) == set(classes())


def test_docs_give_each_errors_base_code_and_status(root: Path) -> None:
    for name, (base, code, status, meaning, remedy) in rows(root).items():
        cls = classes()[name]
        assert cls.__bases__[0].__name__ == base, name
        assert cls.exit_code == int(code), name
        assert str(getattr(cls, "status", "")) == status, name
        assert meaning.endswith(".") and remedy.endswith("."), name


def test_every_error_says_what_it_is() -> None:
    for name, cls in classes().items():
        assert cls.__dict__.get("__doc__"), f"{name} has no docstring"
