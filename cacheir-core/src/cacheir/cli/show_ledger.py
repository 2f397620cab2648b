"""The ledger of an artifact: who supplied each pass, op, kernel and family, and what lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheir.artifact import layout
from cacheir.artifact.card import Card
from cacheir.artifact.lock import PluginLock, read_lock
from cacheir.artifact.pass_files import read_records
from cacheir.artifact.plugin_fingerprint import lock_plugin
from cacheir.artifact.read import read_card, read_checked
from cacheir.cli.output import table
from cacheir.errors import ArtifactDamagedError, ParseError
from cacheir.ir.parser import parse_module
from cacheir.plugins.installation import Installation
from cacheir.plugins.plugin import CORE
from cacheir.plugins.registry import Registry
from cacheir.plugins.specs import PassRecord
from cacheir.quantisers.choose import quantiser_names
from cacheir.schedule.record_json import from_json, parse_json
from cacheir.schedule.schedule import Choice, Entry, Schedule

UNKNOWN = "?"  # nobody here registers it
_MEANING = "(the op's meaning)"  # what runs an op that no kernel takes


@dataclass(frozen=True)
class LedgerRow:
    """One thing of the artifact. ``lost`` says what was not taken in its place, and why."""

    kind: str
    name: str
    plugin: str
    version: str
    where: str
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class LedgerPlugin:
    """A plugin that could take part in the compile. ``here`` compares it with what is installed now."""

    name: str
    distribution: str
    version: str
    fingerprint: str
    here: str


@dataclass(frozen=True)
class Ledger:
    """What ``read_ledger`` finds."""

    rows: tuple[LedgerRow, ...]
    plugins: tuple[LedgerPlugin, ...]


def read_ledger(folder: Path, installation: Installation) -> Ledger:
    """The ledger of the artifact at ``folder``, which need not be able to run here.

    Passes, kernels and plugins are as the artifact recorded them; who has an op or a family now is asked of
    ``installation``. Raises ArtifactError where the folder is no artifact, ArtifactDamagedError for a damaged one.
    """
    card, lock = read_card(folder), read_lock(folder)
    versions = {name: plugin.version for name, plugin in lock.plugins.items()}
    rows = [
        *_passes(read_records(folder), versions, installation),
        *_ops(folder, card, versions, installation),
        *_kernels(_schedules(folder, card), versions),
        *_named(card, versions, installation),
    ]
    plugins = [_compared(name, plugin, installation) for name, plugin in lock.plugins.items()]
    return Ledger(tuple(rows), tuple(plugins))


def ledger_text(ledger: Ledger) -> str:
    """Two tables: what is in the artifact, and the plugins."""
    rows = table(
        ("KIND", "NAME", "PLUGIN", "VERSION", "WHERE", "LOST"),
        [(row.kind, row.name, row.plugin, row.version, row.where, "; ".join(row.lost)) for row in ledger.rows],
    )
    plugins = table(
        ("PLUGIN", "PACKAGE", "VERSION", "FINGERPRINT", "HERE"),
        [(each.name, each.distribution, each.version, each.fingerprint[:16], each.here) for each in ledger.plugins],
    )
    return f"{rows}\n\n{plugins}"


def ledger_json(ledger: Ledger) -> dict[str, Any]:
    """The ledger as JSON values."""
    return {"format": 1, "rows": [vars(row) for row in ledger.rows], "plugins": [vars(each) for each in ledger.plugins]}


def _passes(records: Iterable[PassRecord], versions: dict[str, str], installation: Installation) -> Iterator[LedgerRow]:
    """A row for each pass or step: the modes it ran in, how many graphs it changed, why it was skipped."""
    grouped: dict[tuple[str, str], list[PassRecord]] = {}
    for record in records:
        grouped.setdefault((record.name, record.plugin), []).append(record)
    for (name, plugin), group in grouped.items():
        modes = ", ".join(dict.fromkeys(record.mode for record in group if record.mode))
        changed = sum(record.outcome == "changed" for record in group)
        where = f"{group[0].stage}{f' ({modes})' if modes else ''}: changed {changed} of {len(group)}"
        skipped = tuple(dict.fromkeys(note for each in group if each.outcome == "skipped" for note in each.notes))
        lost = (*(f"skipped: {note}" for note in skipped), *_left_out(installation.passes, name))
        yield LedgerRow("pass", name, plugin, versions.get(plugin, ""), where, lost)


def _ops(folder: Path, card: Card, versions: dict[str, str], installation: Installation) -> Iterator[LedgerRow]:
    counts: dict[str, dict[str, int]] = {}
    for mode in card.options.modes:
        name = layout.graph_file(mode)
        try:
            module = parse_module(read_checked(folder, card, name).decode("utf-8"))
        except (ParseError, UnicodeDecodeError) as error:
            raise ArtifactDamagedError(f"{folder}: {name}: {error}") from error
        for graph in module.graphs:
            for op in graph.ops:
                of_op = counts.setdefault(op.name, {})
                of_op[mode] = of_op.get(mode, 0) + 1
    counts.pop("call", None)  # the grammar's own, which nobody registers
    for name, modes in sorted(counts.items()):
        where = ", ".join(f"{mode} {count}" for mode, count in modes.items())
        yield _registered("op", name, where, installation.ops, versions)


def _kernels(schedules: dict[str, Schedule], versions: dict[str, str]) -> Iterator[LedgerRow]:
    """A row for each kernel that runs something, with the candidates that did not get its ops."""
    places: dict[str, dict[str, int]] = {}
    plugins: dict[str, str] = {}
    lost: dict[str, dict[str, None]] = {}
    for mode, schedule in schedules.items():
        for entry, choice in _choices(schedule):
            if choice.kernel == "call":
                continue
            of_kernel = places.setdefault(choice.kernel, {})
            if not choice.kernel:
                lost.setdefault("", {})[f"{entry.op_name}: {choice.reason}"] = None
            label = f"{mode} {entry.op_name}"
            of_kernel[label] = of_kernel.get(label, 0) + 1
            for candidate in choice.candidates:
                if candidate.kernel == choice.kernel:
                    plugins[choice.kernel] = candidate.plugin
                else:
                    reason = candidate.refusal or f"{choice.kernel} was preferred: {choice.reason}"
                    lost.setdefault(choice.kernel, {})[f"{candidate.kernel} ({candidate.plugin}): {reason}"] = None
    for kernel, where in sorted(places.items()):
        plugin = plugins.get(kernel, UNKNOWN) if kernel else CORE
        text = ", ".join(f"{label} x{count}" if count > 1 else label for label, count in where.items())
        yield LedgerRow(
            "kernel", kernel or _MEANING, plugin, versions.get(plugin, ""), text, tuple(lost.get(kernel, ()))
        )


def _named(card: Card, versions: dict[str, str], installation: Installation) -> Iterator[LedgerRow]:
    if card.spec is not None:
        yield _registered("family", card.spec.family, card.spec.label, installation.families, versions)
    yield _registered("importer", card.model.importer, card.model.name, installation.importers, versions)
    for name in quantiser_names(card.options.quant):
        yield _registered("quantizer", name, "weights", installation.quantizers, versions)
    yield _registered("backend", card.backend, f"target {card.target}", installation.backends, versions)


def _registered(kind: str, name: str, where: str, registry: Registry[Any], versions: dict[str, str]) -> LedgerRow:
    if name not in registry:
        return LedgerRow(kind, name, UNKNOWN, "", where, ("no plugin that is installed here has it",))
    plugin = registry.provider(name).name
    return LedgerRow(kind, name, plugin, versions.get(plugin, ""), where, _left_out(registry, name))


def _left_out(registry: Registry[Any], name: str) -> tuple[str, ...]:
    """What other plugins registered under this name, in vain."""
    return tuple(
        f"{loser.plugin.name}'s, since {winner.name} has the name"
        for loser, winner in registry.left_out
        if loser.spec.name.replace("_", "-") == name.replace("_", "-")
    )


def _schedules(folder: Path, card: Card) -> dict[str, Schedule]:
    found = {}
    for mode in card.options.modes:
        name = layout.schedule_file(mode)
        where = f"{folder}: {name}"
        found[mode] = from_json(Schedule, parse_json(read_checked(folder, card, name), where), where)
    return found


def _choices(schedule: Schedule) -> Iterator[tuple[Entry, Choice]]:
    """Each entry with each of its different choices; row classes with one kernel count once."""
    for graph in schedule.graphs:
        for entry in graph.entries:
            for choice in {choice.kernel: choice for choice in reversed(entry.choices)}.values():
                yield entry, choice


def _compared(name: str, locked: PluginLock, installation: Installation) -> LedgerPlugin:
    installed = next((plugin for plugin in installation.plugins if plugin.name == name), None)
    if installed is None or not installed.implementations:
        here = "not installed" if installed is None else installed.state
    elif lock_plugin(installed, None).fingerprint == locked.fingerprint:
        here = "the same"
    elif installed.version != locked.version:
        here = f"another version: {installed.version}"
    else:
        here = "other files under the same version"
    return LedgerPlugin(name, locked.distribution, locked.version, locked.fingerprint, here)
