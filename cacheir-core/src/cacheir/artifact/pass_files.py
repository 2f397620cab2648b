"""passes/: one diff a step that changed something, records.json without times, times.json beside the guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from cacheir.artifact.folded_diff import fold_diff, unfold_diff
from cacheir.artifact.layout import RECORDS, TIMES, read_bytes
from cacheir.artifact.seal import open_sealed, sealed_bytes
from cacheir.errors import ArtifactDamagedError
from cacheir.plugins.specs import PassRecord, Stage
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.record_json import from_json, json_bytes, parse_json, to_json


@dataclass(frozen=True, kw_only=True)
class KeptRecord:
    """A ``PassRecord`` as records.json has it: ``diff`` is the name of the file, and there is no time."""

    name: str
    plugin: str
    stage: str
    mode: str
    outcome: str
    before: str
    after: str
    graph: str = ""
    diff: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    rewrites: int = 0
    notes: tuple[str, ...] = ()
    sites: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of each record, in the order of records.json."""

    seconds: tuple[float, ...]


def pass_files(records: Sequence[PassRecord]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file, times.json last."""
    names = _diff_names(records)
    kept = []
    for record, name in zip(records, names):
        if name:
            yield name, fold_diff(record.diff).encode("utf-8")
        kept.append(
            KeptRecord(
                name=record.name,
                plugin=record.plugin,
                stage=str(record.stage),
                mode=record.mode,
                outcome=record.outcome,
                before=record.before,
                after=record.after,
                graph=record.graph,
                diff=name,
                counts=record.counts,
                rewrites=record.rewrites,
                notes=record.notes,
                sites=record.sites,
            )
        )
    yield RECORDS, json_bytes([to_json(record) for record in kept])
    times = Times(seconds=tuple(round(record.seconds, 6) for record in records))
    yield TIMES, sealed_bytes(to_json(times))


def read_records(folder: Path) -> tuple[PassRecord, ...]:
    """The records of an artifact, with diffs and times. ArtifactDamagedError where a file is missing or no record."""
    where = f"{folder}: {RECORDS}"
    values = parse_json(read_bytes(folder, RECORDS), where)
    if not isinstance(values, list):
        raise ArtifactDamagedError(f"{where} must hold a list")
    kept = [from_json(KeptRecord, value, f"{where}: [{number}]") for number, value in enumerate(values)]
    times = from_json(Times, open_sealed(read_bytes(folder, TIMES), f"{folder}: {TIMES}"), f"{folder}: {TIMES}")
    if len(times.seconds) != len(kept):
        raise ArtifactDamagedError(f"{folder}: {TIMES} has {len(times.seconds)} times for {len(kept)} records")
    return tuple(_restored(folder, record, seconds) for record, seconds in zip(kept, times.seconds))


def _restored(folder: Path, record: KeptRecord, seconds: float) -> PassRecord:
    if record.diff and not record.diff.startswith("passes/"):
        raise ArtifactDamagedError(f"{folder}: {RECORDS} names {record.diff!r} as a diff")
    try:
        return PassRecord(
            name=record.name,
            plugin=record.plugin,
            stage=Stage(record.stage),
            mode=record.mode,
            outcome=record.outcome,
            before=record.before,
            after=record.after,
            seconds=seconds,
            graph=record.graph,
            diff=_diff(folder, record.diff) if record.diff else "",
            counts=record.counts,
            rewrites=record.rewrites,
            notes=record.notes,
            sites=record.sites,
        )
    except ValueError as error:
        raise ArtifactDamagedError(f"{folder}: {RECORDS}: {error}") from error


def _diff(folder: Path, name: str) -> str:
    """The unified diff in the file ``name``, which a record names because there is one."""
    content = read_bytes(folder, name)
    try:
        diff = unfold_diff(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ArtifactDamagedError(f"{folder}: {name} is no text in UTF-8: {error.reason}") from error
    except ArtifactDamagedError as error:
        raise ArtifactDamagedError(f"{folder}: {name}: {error}", hint=error.hint) from error
    if not diff:
        raise ArtifactDamagedError(f"{folder}: {name} is empty", hint="compile the model again")
    return diff


def _diff_names(records: Sequence[PassRecord]) -> list[str]:
    """A file name for each record, "" for one without a diff: ``passes/03.mode.decode.lower-attention.diff``.

    A step is a pass in a stage and a mode. Where it changed several graphs, the graph stands in the name too.
    """
    steps: dict[tuple[str, str, str], list[PassRecord]] = {}
    for record in records:
        steps.setdefault((str(record.stage), record.mode, record.name), []).append(record)
    numbers = {step: number for number, step in enumerate(steps, start=1)}
    width = max(2, len(str(len(steps))))
    names = []
    for record in records:
        step = (str(record.stage), record.mode, record.name)
        parts = [f"{numbers[step]:0{width}}", *filter(None, step)]
        if sum(1 for other in steps[step] if other.diff) > 1:
            parts.append(record.graph or "all")
        names.append(f"passes/{'.'.join(parts)}.diff" if record.diff else "")
    return names
