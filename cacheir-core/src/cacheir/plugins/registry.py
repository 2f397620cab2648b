"""One kind of contribution, by name: what plugins registered, who registered it, and what a clash left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, Generic, TypeVar, cast

from cacheir.errors import UsageError
from cacheir.plugins.host import Contribution, Host
from cacheir.plugins.kinds import Kind
from cacheir.plugins.plugin import Plugin, Problem
from cacheir.plugins.providers import hint_for

T = TypeVar("T")


class Registry(Generic[T]):
    """The contributions of one kind. Plugins are asked on the first access.

    Names match with ``-`` and ``_`` alike. Of two contributions that claim one name the earlier plugin's stays (core
    first, then by plugin name), and the later one's is a problem of the later plugin that names both.
    """

    def __init__(self, host: Host, kind: Kind) -> None:
        self.host = host
        self.kind = kind
        self._contributions: tuple[Contribution[T], ...] | None = None
        self._by_claim: dict[str, Contribution[T]] = {}
        self._left_out: list[tuple[Contribution[T], Plugin]] = []

    @property
    def contributions(self) -> tuple[Contribution[T], ...]:
        """Every contribution that counts, core's first, each plugin's in its own order."""
        if self._contributions is None:
            found = self.host.collect(self.kind.hook_name)
            kept = []
            claimed: dict[str, Contribution[T]] = {}
            for contribution in found:
                clash = next((key for key in map(_key, self._claims(contribution.spec)) if key in claimed), None)
                if clash is not None:
                    self._leave_out(contribution, claimed[clash].plugin, clash)
                    continue
                kept.append(contribution)
                claimed.update((_key(claim), contribution) for claim in self._claims(contribution.spec))
            self._by_claim = claimed
            self._contributions = tuple(kept)
        return self._contributions

    @property
    def left_out(self) -> tuple[tuple[Contribution[T], Plugin], ...]:
        """Contributions that a clash left out, each with the plugin that has the name."""
        self.contributions  # noqa: B018  asks the plugins
        return tuple(self._left_out)

    def __iter__(self) -> Iterator[T]:
        return (contribution.spec for contribution in self.contributions)

    def __len__(self) -> int:
        return len(self.contributions)

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def __getitem__(self, name: str) -> T:
        """The one called ``name``. Raises ``UsageError``, with names that are close or all there are."""
        return self.contribution(name).spec

    def find(self, name: str) -> T | None:
        """The one called ``name``, or None. A family is also found as ``huggingface:ARCHITECTURE`` or ``gguf:...``."""
        contribution = self._find(name)
        return None if contribution is None else contribution.spec

    def contribution(self, name: str) -> Contribution[T]:
        """As ``[name]``, with the plugin that it comes from."""
        contribution = self._find(name)
        if contribution is None:
            raise self.unknown(name)
        return contribution

    def provider(self, name: str) -> Plugin:
        """The plugin that registered ``name``."""
        return self.contribution(name).plugin

    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        return tuple(sorted(self._name(contribution.spec) for contribution in self.contributions))

    def by_name(self) -> dict[str, T]:
        """Name -> record, in order; a new dictionary at each call."""
        return {self._name(spec): spec for spec in self}

    def where(self, accepts: Callable[[T], bool]) -> tuple[T, ...]:
        """Those that ``accepts`` takes, in order."""
        return tuple(spec for spec in self if accepts(spec))

    def unknown(self, name: str) -> UsageError:
        """The error for a name that nobody registered."""
        names = self.names()
        close = get_close_matches(name, names, n=1)
        where = hint_for(self.kind.name, name, self.host.plugins)
        if where:
            hint = where
        elif close:
            hint = f"did you mean {close[0]!r}?"
        elif names:
            hint = f"there are: {', '.join(names)}"
        else:
            hint = f"no installed plugin registers {self.kind.plural}"
        return UsageError(f"there is no {self.kind.name} {name!r}", hint=hint)

    def _find(self, name: str) -> Contribution[T] | None:
        self.contributions  # noqa: B018  asks the plugins
        return self._by_claim.get(_key(name))

    def _claims(self, spec: T) -> list[str]:
        return list(self.kind.claims(spec))

    def _name(self, spec: T) -> str:
        return cast(str, cast(Any, spec).name)

    def _leave_out(self, contribution: Contribution[T], first: Plugin, claim: str) -> None:
        self._left_out.append((contribution, first))
        name = self._name(contribution.spec)
        what = f"{self.kind.name} {name!r} is left out"
        about = "that name" if claim == _key(name) else repr(claim.partition(":")[2])
        hint = f"set CACHEIR_BLOCK_PLUGINS={contribution.plugin.name}"
        if first is contribution.plugin:
            sentence = f"{what}: it registers {about} twice"
        else:
            sentence = f"{what}: plugin {first.label} has {about} already"
            hint += f" or CACHEIR_BLOCK_PLUGINS={first.name} to choose" if first.name != "core" else ""
        self.host.blame(contribution.plugin, Problem(sentence, hint=hint, is_conflict=True), state="loaded")


def _key(claim: str) -> str:
    return claim.replace("_", "-")
