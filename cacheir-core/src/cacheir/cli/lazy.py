"""A command group that lists commands from data and imports one only when it is run.

It subclasses typer's group and not click's: recent typer carries its own click, whose objects do not mix with the
``click`` package's. For the same reason a plugin hands over a reference to a ``typer.Typer`` or a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperGroup

from cacheir.errors import PluginError, UsageError

if TYPE_CHECKING:
    from cacheir.plugins.survey import Command

# Called with a name that is no command; gives all commands, freshly asked for, and a hint on where the name may be.
Relist = Callable[[str], tuple[Mapping[str, "Command"], str]]


def make_group(commands: Mapping[str, Command], relist: Relist, **options: Any) -> type[TyperGroup]:
    """A group class over ``commands``; typer wants a class and not an instance."""

    class LazyGroup(TyperGroup):
        """The commands of ``cacheir``."""

        known: ClassVar[dict[str, Command]] = dict(commands)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.known)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            command = self.known.get(cmd_name)
            return None if command is None else load_command(command)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] not in self.known and not args[0].startswith("-"):
                fresh, where = relist(args[0])
                self.known.update(fresh)
                if args[0] not in self.known:
                    raise unknown_command(args[0], list(self.known), where)
            return super().resolve_command(ctx, args)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            for group, members in by_group(self.known).items():
                with formatter.section(group):
                    formatter.write_dl([(command.name, command.help) for command in members])

    return LazyGroup


def load_command(command: Command) -> Any:
    """Import a command's app; ``PluginError`` where it is no ``typer.Typer`` and no function."""
    from cacheir.cli.plain_values import take_plain_values
    from cacheir.plugins.ref import resolve

    app = resolve(command.app)
    if not isinstance(app, typer.Typer):
        if not callable(app):
            raise PluginError(
                f"command {command.name!r} of plugin {command.plugin!r}: {command.app} is a {type(app).__name__},"
                " and must be a typer.Typer or a function"
            )
        function, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(function)
    loaded = typer.main.get_command(app)
    loaded.name = command.name
    if not loaded.help:
        loaded.help = command.help
    take_plain_values(loaded)
    return loaded


def unknown_command(name: str, known: list[str], where: str) -> UsageError:
    """The error for a name that is no command, with the best hint there is."""
    close = get_close_matches(name, known, n=1)
    hint = where or (f"did you mean {close[0]!r}?" if close else "cacheir --help lists the commands")
    return UsageError(f"there is no command {name!r}", hint=hint)


def by_group(commands: Mapping[str, Command]) -> dict[str, list[Command]]:
    """Commands by heading: core's first, then by name."""
    groups: dict[str, list[Command]] = {}
    for command in commands.values():
        groups.setdefault(command.group, []).append(command)
    return dict(sorted(groups.items(), key=lambda item: (item[1][0].plugin != "core", item[0])))
