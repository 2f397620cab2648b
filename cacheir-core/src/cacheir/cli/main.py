"""The command ``cacheir``: finds the command that is asked for, runs it, and turns errors into one line and a code."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cacheir import __version__
from cacheir.errors import CacheIRError
from cacheir.plugins import survey

if TYPE_CHECKING:
    from cacheir.plugins.installation import Installation
    from cacheir.plugins.survey import Command, Survey

INTERRUPTED = 130  # 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # 128 + SIGPIPE

# A plugin that is still importing after this is left off the help page; other commands wait for it.
_HELP_SECONDS_EACH = 1.0

# Reading a program and a vocabulary makes some 120,000 objects that stay. Python would look through all of them for
# cycles each time another 700 are there, a tenth of the time to a first token.
_OBJECTS_BETWEEN_COLLECTIONS = 200_000

_ABOUT = "An inspectable compiler and runtime for decoder-only transformers."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``cacheir`` with ``arguments`` (default the process's) and exit with its code."""
    # What is printed to a closed stream is lost. Were it None, print would send standard error to standard output.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open to the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a token's text or a file's name must not end the program
            stream.reconfigure(errors="surrogateescape" if stream.encoding.lower() == "utf-8" else "backslashreplace")
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    gc.freeze()  # the process ends and its memory with it: Python need not look through all of it once more
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run ``cacheir``; gives the exit code. ``--debug`` may stand anywhere before ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    arguments = [word for place, word in enumerate(arguments) if word != "--debug" or place > end]
    try:
        code = _dispatch(arguments or ["--help"])
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except CacheIRError as error:
        _show(error, debug)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone. Python flushes standard output once more at exit, which must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    # What the system refuses is nobody's fault here: standard output on a full disk, a name that is too long.
    except OSError as error:
        if debug:
            raise
        place = f" ({error.filename})" if error.filename else ""
        print(f"error: the system refused: {error.strerror or error}{place}", file=sys.stderr)
        print("hint: --debug shows at what", file=sys.stderr)
        return 1
    # A fault of ours or of a plugin: a person sees a line, and with --debug the traceback.
    except Exception as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        print("hint: this is a fault in CacheIR or a plugin; --debug shows where", file=sys.stderr)
        return 1


def _dispatch(arguments: list[str]) -> int:
    if arguments[0] == "--version":
        print(f"cacheir {__version__}")
        return 0
    wants_help = arguments[0].startswith("-")
    key = survey.current_key()
    known = survey.read(key)
    if known is None:
        installation = _help_installation() if wants_help else _installation()
        known = survey.take(installation)
        survey.write(key, known)
    else:
        _show_problems(known, loads=not wants_help)
    code = _run_command(arguments, known, key)
    if not wants_help:
        _keep_what_was_learnt(known, key)
    return code


def _run_command(arguments: list[str], known: Survey, key: survey.Key) -> int:
    # Rich would take 100 ms to draw a help page, and boxes that nobody can pipe.
    os.environ["TYPER_USE_RICH"] = "0"
    import typer

    from cacheir.cli.lazy import make_group
    from cacheir.cli.plain_values import take_plain_values

    def relist(name: str) -> tuple[Mapping[str, Command], str]:
        from cacheir.plugins.providers import hint_for

        installation = _installation()
        fresh = survey.take(installation)
        survey.write(key, fresh)
        return _by_name(fresh), hint_for("command", name, installation.plugins)

    group = make_group(_by_name(known), relist)
    app = typer.Typer(
        cls=group,
        help=_ABOUT,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", help="Show the version and exit."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; may stand anywhere."),
    ) -> None:
        """Both are read before typer sees the arguments; they stand here for the help page."""

    command = typer.main.get_command(app)
    take_plain_values(command)
    return _invoke(command, arguments)


def _invoke(command: Any, arguments: list[str]) -> int:
    """Parse and run. What click would print and exit with is printed here and returned, so that one place decides."""
    import typer

    # The class is click's, typer's own or the package's by version; both call it the same.
    usage_fault: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        with command.make_context("cacheir", list(arguments)) as context:
            result = command.invoke(context)
    except typer.Exit as finished:
        return int(finished.exit_code)
    except typer.Abort:
        print("aborted", file=sys.stderr)
        return 1
    except usage_fault as fault:
        fault.show()
        return int(fault.exit_code)
    return result if isinstance(result, int) else 0


def _installation() -> Installation:
    """The process's installation, told to keep this command's standard output clean."""
    from dataclasses import replace

    from cacheir.plugins.installation import default

    installation = default()
    installation.host.options = replace(installation.host.options, keep_stdout_clean=True)
    return installation


def _help_installation() -> Installation:
    """An installation for the help page alone, which waits for no plugin."""
    from dataclasses import replace

    from cacheir.plugins.host import Host, HostOptions
    from cacheir.plugins.installation import Installation

    options = HostOptions.from_environment()
    # In strict mode a slow plugin is waited for: being busy is no fault, and an error must not depend on it.
    limit = None if options.strict else _HELP_SECONDS_EACH
    return Installation(Host(replace(options, keep_stdout_clean=True, seconds_each=limit)))


def _show_problems(known: Survey, *, loads: bool) -> None:
    """Name what was wrong with plugins when they were asked; the host, where it loads, does not name them again."""
    if loads:
        _installation().host.reported.update(plugin for plugin, _ in known.problems)
    for _, line in known.problems:
        print(line, file=sys.stderr)


def _keep_what_was_learnt(known: Survey, key: survey.Key) -> None:
    """Where the command loaded plugins and they said something else than is kept, keep that."""
    from cacheir.plugins.installation import default

    host = default().host
    if host.is_loaded:
        fresh = survey.take(default())
        if fresh != known:
            survey.write(key, fresh)


def _by_name(known: Survey) -> dict[str, Command]:
    return {command.name: command for command in known.commands}


def _show(error: CacheIRError, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)


if __name__ == "__main__":
    main()
