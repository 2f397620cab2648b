"""Nodes that run by their meaning although a kernel takes them: what ``--unfuse`` asks for, to find a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from cacheir.errors import UsageError
from cacheir.schedule.flatten import Launch
from cacheir.schedule.schedule import Choice

K = TypeVar("K")

_BY_MEANING = (Choice(rows_up_to=0, kernel="", reason="unfused by --unfuse"),)


def unfuse(launches: Mapping[K, Sequence[Launch]], names: Sequence[str]) -> dict[K, list[Launch]]:
    """``launches`` with the named nodes run by their meaning.

    A name is ``product``, or ``product@3`` for layer 3 alone. Raises UsageError for one that no launch has.
    """
    for name in names:
        if not any(_is_meant(name, launch) for group in launches.values() for launch in group):
            raise UsageError(
                f"--unfuse names {name!r}, which the program does not have",
                hint="write NODE, or NODE@LAYER; cacheir inspect MODEL --kernels lists the nodes",
            )
    return {key: [_unfused(launch, names) for launch in group] for key, group in launches.items()}


def _unfused(launch: Launch, names: Sequence[str]) -> Launch:
    return replace(launch, choices=_BY_MEANING) if any(_is_meant(name, launch) for name in names) else launch


def _is_meant(name: str, launch: Launch) -> bool:
    node, at, layer = name.removeprefix("%").partition("@")
    return node == launch.node and (not at or layer == str(launch.layer))
