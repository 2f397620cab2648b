"""docs/hooks.md has every hook with its exact arguments, and docs/writing-a-plugin.md quotes the example as it is."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from cacheir.ir import OpDef
from cacheir.plugins import KernelSpec
from cacheir.plugins.check_module import arguments, hook_specs
from cacheir.plugins.kinds import KINDS
from cacheir.plugins.markers import HOOK_API
from cacheir.plugins.ref import resolve
from cacheir.settings import SETTINGS

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Install = Callable[..., Path]

ROOT = Path(__file__).resolve().parents[2]
HOOKS = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "writing-a-plugin.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "plugins-example" / "cacheir-drop-reshape"


def sections() -> dict[str, str]:
    """Heading -> text of each section about a hook, in order."""
    parts = re.split(r"^## (cacheir_.*)$", HOOKS, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2]))


def test_one_heading_for_each_hook_with_its_arguments_in_order() -> None:
    expected = [f"{name}({', '.join(arguments(function))})" for name, function in hook_specs().items()]
    assert list(sections()) == expected


def test_level_and_since_of_each_hook() -> None:
    for (name, function), text in zip(hook_specs().items(), sections().values()):
        since = ".".join(map(str, function.cacheir_since))  # type: ignore[attr-defined]
        line = f"Level: {function.cacheir_level}. Since: {since}."  # type: ignore[attr-defined]
        assert text.strip().startswith(line), name


def test_the_record_of_each_register_hook_is_named() -> None:
    for kind in KINDS:
        text = sections()[f"{kind.hook_name}()"]
        assert re.search(rf"`(cacheir\.ir\.)?{resolve(kind.record).__name__}` records", text), kind.hook_name


def test_the_version_is_named() -> None:
    assert f"The hook API is\n{HOOK_API[0]}.{HOOK_API[1]}," in HOOKS


def blocks(language: str) -> list[str]:
    """The code blocks of the four steps in one language; other examples are quoted in part, see test_examples.py."""
    steps = TUTORIAL.partition("## The other kinds")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", steps, flags=re.MULTILINE | re.DOTALL)


def test_the_tutorial_quotes_the_example() -> None:
    project, module = EXAMPLE / "pyproject.toml", EXAMPLE / "src" / "cacheir_drop_reshape.py"
    tests, case = EXAMPLE / "tests" / "test_drop_reshape.py", EXAMPLE / "tests" / "cases" / "one.before.cir"
    assert blocks("toml") == [project.read_text(encoding="utf-8")]
    # Step 2 shows the module on its way; steps 3 and 4 end with the files as they are.
    draft, *whole = blocks("python")
    assert whole == [module.read_text(encoding="utf-8"), tests.read_text(encoding="utf-8")]
    assert blocks("cir") == [case.read_text(encoding="utf-8")]
    compile(draft, "step 2", "exec")


def test_the_drafts_of_the_tutorial_are_the_example_with_less_in_it() -> None:
    draft, whole, _ = blocks("python")
    kept = [line for line in draft.splitlines() if line.strip() and line.strip() != "return graph"]
    remaining = iter(whole.splitlines())
    assert all(line in remaining for line in kept), "step 2 has a line that step 3 does not have"


def test_the_example_is_as_small_as_it_says() -> None:
    module = (EXAMPLE / "src" / "cacheir_drop_reshape.py").read_text(encoding="utf-8")
    assert len(module.splitlines()) <= 26
    assert len([line for line in (EXAMPLE / "pyproject.toml").read_text().splitlines() if line]) <= 16


def shown(command: str) -> list[list[str]]:
    """What the tutorial shows under ``$ command``, one list of lines each time."""
    found = re.findall(rf"^    \$ {re.escape(command)}\n((?:    .*\n|\n(?=    ))*)", TUTORIAL, flags=re.MULTILINE)
    return [[line.strip() for line in block.splitlines() if line.strip()] for block in found]


@pytest.mark.parametrize(
    "arguments", ["plugins list", "plugins list --kind passes", "plugins doctor drop-reshape"], ids=lambda text: text
)
def test_the_tutorial_shows_what_commands_print(arguments: str, install: Install, cacheir: Run) -> None:
    module = (EXAMPLE / "src" / "cacheir_drop_reshape.py").read_text(encoding="utf-8")
    install("cacheir-drop-reshape", "0.1.0", module)
    printed = [_plain(line) for line in cacheir(*arguments.split()).stdout.splitlines()]
    blocks_shown = shown(f"cacheir {arguments}")
    assert blocks_shown
    for line in blocks_shown[0]:
        # "..." stands for what is left out: the rest of a line, or lines.
        start = _plain(line.partition("...")[0])
        assert any(each.startswith(start) for each in printed), f"{line!r} is not in what it prints"


def _plain(line: str) -> str:
    """A line with its numbers as # and its runs of spaces as one."""
    return re.sub(r"[\d.]*\d", "#", " ".join(line.split()))


def test_variables_of_the_tutorial_are_variables() -> None:
    named = set(re.findall(r"\bCACHEIR_[A-Z_]+\b", TUTORIAL + HOOKS)) - {"CACHEIR_HOOK_API"}
    assert named <= {setting.name for setting in SETTINGS}


@pytest.mark.parametrize(
    ("record", "page"), [(KernelSpec, "kernels.md"), (OpDef, "writing-a-plugin.md")], ids=["kernel", "op"]
)
def test_a_page_has_every_field_of_the_record(record: type, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    table = text.partition("| field | what it")[2].partition("\n\n")[0]
    rows = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)} | set(
        re.findall(r"Or `(\w+)`, a NumPy function", table)
    )
    left_out = {"effects"}  # for ops that change a state, which is core's own business
    assert named == {field.name for field in fields(record)} - left_out
