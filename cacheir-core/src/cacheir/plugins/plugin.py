"""A plugin as the host knows it: where it comes from, its state, what it was found to do wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# found: known, nothing imported. loaded: imported, hooks checked. failed: raised while being imported, has a hook that
# does not exist or asks for an argument that does not, or raised inside a register hook. incompatible: written for
# another hook API. slow: cut off at the time that `--help` has. blocked: left out by the user.
STATES = ("found", "loaded", "failed", "incompatible", "slow", "blocked")

CORE = "core"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a plugin. ``sentence`` is for stderr, ``hint`` for ``doctor``.

    ``is_note`` marks what costs time and nothing else; it is no error even in strict mode. ``is_passing`` marks what
    happened in a call of an observer or a selector: it need not happen again. ``is_conflict`` marks a name that another
    plugin has.
    """

    sentence: str
    hint: str = ""
    is_note: bool = False
    is_passing: bool = False
    is_conflict: bool = False
    error: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass
class Plugin:
    """A plugin's record. Only the host writes it; everyone else reads."""

    name: str
    target: str
    distribution: str = ""
    version: str = ""
    folder: str = ""  # the metadata folder of its distribution, "" where there is none
    state: str = "found"
    seconds: float = 0.0  # time to import
    heavy: tuple[str, ...] = ()  # packages that loading it pulled in, which a plugin module must not
    implementations: Mapping[str, Any] = field(default_factory=dict)  # hook -> pluggy.HookImpl
    problems: list[Problem] = field(default_factory=list)

    @property
    def module(self) -> str:
        """The module that is imported: the target without an attribute."""
        return self.target.partition(":")[0]

    @property
    def hooks(self) -> tuple[str, ...]:
        """The hooks it implements, sorted."""
        return tuple(sorted(self.implementations))

    @property
    def label(self) -> str:
        """Name and package, for messages: ``'cpu' (cacheir-cpu 0.1.0)``."""
        package = f"{self.distribution} {self.version}".strip()
        return f"{self.name!r} ({package})" if package else repr(self.name)

    def sort_key(self) -> tuple[bool, str]:
        """Core first, then by name: the order in which plugins are asked."""
        return (self.name != CORE, self.name)
