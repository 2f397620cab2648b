"""Plain values of a command line become what typer makes of them, and typer says what is wrong with the others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

from cacheir.cli.plain_values import take_plain_values
from cacheir.errors import UsageError

Got = dict[str, Any]

WORDS = typer.Option([])
NUMBERS = typer.Option([])

LINES = [
    [],
    ["x", "--whole", "7", "--share", "0.5", "--name", "n", "--word", "a", "--word", "b", "--flag"],
    ["", "--name", ""],
    ["x", "--share", "3"],
    ["x", "--share", "-0"],
    ["x", "--share", "1e3"],
    ["x", "--share", "nan"],
    ["x", "--whole", "-3"],
    ["x", "--whole", "0"],
    ["x", "--whole", "11"],
    ["x", "--whole", "1_0"],
    ["x", "--whole", " 5 "],
    ["x", "--whole", "5.0"],
    ["x", "--whole", "05"],
    ["x", "--whole", "9" * 30],
    ["x", "--bounded", "1.5"],
    ["x", "--bounded", "0.25"],
    ["x", "--clamped", "99"],
    ["x", "--maybe", "4"],
    ["x", "--kind", "two"],
    ["x", "--kind", "three"],
    ["x", "--number", "5", "--number", "six"],
    ["x", "--number", "5", "--number", "6"],
    ["x", "--called", "loud"],
    ["--help"],
]


def _shout(value: str) -> str:
    return value.upper()


def _command(quick: bool, seen: Callable[[Got], None]) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def made(
        first: str = typer.Argument(None),
        name: str = typer.Option(None),
        whole: int = typer.Option(3, min=0, max=10),
        share: float = typer.Option(0),
        bounded: float = typer.Option(0.5, min=0.0, max=1.0),
        clamped: int = typer.Option(1, max=5, clamp=True),
        maybe: int = typer.Option(None),
        word: list[str] = WORDS,
        number: list[int] = NUMBERS,
        called: str = typer.Option("quiet", callback=_shout),
        flag: bool = typer.Option(False, "--flag"),
    ) -> None:
        seen({key: value for key, value in locals().items() if key != "seen"})

    command = typer.main.get_command(app)
    if quick:
        take_plain_values(command)
    return command


def _run(quick: bool, words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Any, Got, str]:
    got: Got = {}
    with pytest.raises(SystemExit) as ended:
        _command(quick, got.update).main(list(words), prog_name="made")
    said = capsys.readouterr()
    return ended.value.code, got, said.out + said.err


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_the_same_as_typers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, got, said = _run(True, words, capsys)
    expected_code, expected, expected_said = _run(False, words, capsys)
    assert (code, said) == (expected_code, expected_said)
    assert {key: repr(value) for key, value in got.items()} == {key: repr(value) for key, value in expected.items()}


def test_a_required_value_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    def ended(quick: bool) -> tuple[Any, str]:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)

        @app.command()
        def made(model: str = typer.Argument(), count: int = typer.Option()) -> None:
            raise AssertionError("it must not run")

        command = typer.main.get_command(app)
        if quick:
            take_plain_values(command)
        with pytest.raises(SystemExit) as end:
            command.main(["x"], prog_name="made")
        return end.value.code, capsys.readouterr().err

    assert ended(True) == ended(False)


def test_a_command_of_plain_values_needs_no_adapters() -> None:
    program = (
        "import sys; from cacheir.cli.main import run; run(['run', 'no-such-model', '--prompt', 'x', "
        "'--max-new-tokens', '3', '--temperature', '0.5', '--stop', 'y']); print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "no-such-model" in done.stderr  # it came as far as the model
    assert done.stdout == "False\n"


@pytest.mark.parametrize("option", ["--quant", "--kv-dtype", "--memory", "--cuda-dtype", "--spill-folder", "--pass"])
def test_an_option_that_names_something_is_not_empty(option: str) -> None:
    seen: list[Got] = []
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def made(
        name: str = typer.Option(""),
        quant: str = typer.Option(""),
        kv_dtype: str = typer.Option(""),
        memory: str = typer.Option(""),
        cuda_dtype: str = typer.Option(""),
        spill_folder: str = typer.Option(""),
        pass_name: str = typer.Option("", "--pass"),
    ) -> None:
        seen.append(locals())

    command = typer.main.get_command(app)
    take_plain_values(command)
    command.main(["--name", ""], standalone_mode=False)  # the defaults are empty too, and a text may be
    assert len(seen) == 1
    for words in ([option, ""], [f"{option}="]):
        with pytest.raises(UsageError, match=f"{option} is empty"):
            command.main(words, standalone_mode=False)
    command.main([option, "x"], standalone_mode=False)
    assert len(seen) == 2
