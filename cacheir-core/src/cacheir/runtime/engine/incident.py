"""The flight recorder and its file: what came in and what was decided, and a replay that gives the same tokens."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.artifact.partial import remove_leftovers
from cacheir.errors import ArtifactDamagedError, ArtifactVersionError
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.sampling import SamplingParams
from cacheir.weights.atomic_file import write_stream

if TYPE_CHECKING:
    from cacheir.runtime.engine.engine import Engine

FORMAT = 1
MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What one step did: jobs by id with the tokens that each row fed; ``waits`` is why nobody else was admitted."""

    number: int
    mode: str
    rows: tuple[tuple[str, int], ...]
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]
    ahead: int
    waits: str
    seconds: float


class Recorder:
    """Keeps the last ``decisions`` steps and the jobs that took part in them, with the tokens that they were given."""

    def __init__(self, decisions: int) -> None:
        self.decisions: deque[Decision] = deque(maxlen=decisions)
        self._jobs: OrderedDict[str, tuple[Job, list[int], list[str]]] = OrderedDict()
        self._most_jobs = max(4 * decisions, 1)

    def came(self, job: Job) -> None:
        """A job was queued; those that are oldest, and have ended, are forgotten."""
        if self.decisions.maxlen == 0:
            return
        self._jobs[job.id] = (job, [], [])
        surplus = len(self._jobs) - self._most_jobs
        if surplus > 0:  # looked through no more often than that: this is done for each job
            for job_id in [name for name, (_, _, ends) in self._jobs.items() if ends][:surplus]:
                del self._jobs[job_id]

    def told(self, event: Event) -> None:
        """An event went to a job's client."""
        if (known := self._jobs.get(event.job_id)) is not None:
            known[1].extend(event.ids)
            if event.outcome is not None:
                known[2].append(event.outcome)

    def incident(self, program_key: str, limits: EngineLimits) -> dict[str, Any]:
        """All of it as plain data. Jobs with stages of their own are listed and cannot be replayed."""
        jobs = [
            {
                "id": job.id,
                "ids": list(job.ids),
                "sampling": _sampling_json(job.sampling),
                "priority": job.priority,
                "salt": job.salt,
                "reuse": job.reuse,
                "share_duplicates": job.share_duplicates,
                "replayable": not job.stages and not job.sampling.by_plugins and job.want == "token",
                "tokens": tokens,
                "outcome": ends[0] if ends else None,
            }
            for job, tokens, ends in self._jobs.values()
        ]
        decisions = [asdict(decision) for decision in self.decisions]
        return {
            "format": FORMAT,
            "program_key": program_key,
            "limits": asdict(limits),
            "jobs": jobs,
            "decisions": decisions,
        }


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a replay found. ``parted`` is the first job whose tokens differ, and at which of its tokens."""

    jobs: int
    tokens: int
    skipped: tuple[str, ...]
    parted: tuple[str, int] | None


def save_incident(path: Path, incident: Mapping[str, Any]) -> None:
    """Writes ``incident`` whole or not at all; ``ArtifactError`` where it cannot be written.

    What a process that was killed while it wrote ``path`` left is removed, and named on stderr.
    """
    remove_leftovers(path)
    encoder = json.JSONEncoder(allow_nan=False)
    write_stream(path, (part.encode() for part in encoder.iterencode(incident)))


def load_incident(path: Path) -> dict[str, Any]:
    """Reads an incident file, which may be anybody's; ``ArtifactDamagedError`` where it is none.

    What a save of ``path`` that was killed left is removed, and named on stderr.
    """
    remove_leftovers(path)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ArtifactDamagedError(f"{path} has more than {MAX_FILE_BYTES} bytes, so it is no incident of ours")
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict) or not isinstance(found["jobs"], list):
            raise TypeError("there is no list of jobs")
        if found["format"] != FORMAT:
            raise ArtifactVersionError(
                f"{path} has format {found['format']!r}, and this version reads {FORMAT}",
                hint="replay it with the version that wrote it",
            )
        for job in found["jobs"]:
            SamplingParams(**job["sampling"])
            _check_numbers(job["ids"])
            _check_numbers(job["tokens"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactDamagedError(f"{path} is no incident file: {error}") from None
    return found


def replay(engine: Engine, incident: Mapping[str, Any]) -> Replay:
    """Runs the jobs of ``incident`` together on ``engine`` and compares every token that was given then.

    A job that was cancelled is run to as many tokens as it had. Equal tokens are promised where the executor's bits
    depend on nothing but the job (``Capabilities.determinism`` is "bit").
    """
    replayed, skipped, jobs = [], [], []
    for entry in incident["jobs"]:
        if not entry["replayable"] or not entry["tokens"]:
            skipped.append(str(entry["id"]))
            continue
        replayed.append(entry)
        jobs.append(
            Job(
                id=str(entry["id"]),
                ids=tuple(entry["ids"]),
                sampling=SamplingParams(**entry["sampling"]),
                priority=int(entry["priority"]),
                salt=str(entry["salt"]),
                reuse=bool(entry["reuse"]),
                share_duplicates=bool(entry["share_duplicates"]),
            )
        )
    parted, tokens = None, 0
    for entry, events in zip(replayed, engine.generate(jobs)):
        now = [token for event in events for token in event.ids]
        then = entry["tokens"]
        tokens += len(then)
        if parted is None and now[: len(then)] != then:
            place = next(
                (at for at, (one, other) in enumerate(zip(then, now)) if one != other), min(len(now), len(then))
            )
            parted = (str(entry["id"]), place)
    return Replay(jobs=len(jobs), tokens=tokens, skipped=tuple(skipped), parted=parted)


def _sampling_json(sampling: SamplingParams) -> dict[str, Any]:
    return {field.name: getattr(sampling, field.name) for field in fields(sampling)}


def _check_numbers(value: Sequence[Any]) -> None:
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise TypeError("token ids must be a list of integers")
