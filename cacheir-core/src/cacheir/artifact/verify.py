"""Finds every file of an artifact that is not what was written, and says whether it still belongs to its model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cacheir.artifact import layout
from cacheir.artifact.card import Card
from cacheir.artifact.lock import read_lock
from cacheir.artifact.read import read_artifact, read_card
from cacheir.artifact.seal import digest_file, open_sealed
from cacheir.errors import ArtifactError, CacheIRError
from cacheir.plugins.installation import Installation
from cacheir.weights.content_hash import hash_content


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault: the file it is in ("" for the artifact as a whole) and what is wrong, in a sentence."""

    file: str
    fault: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """``findings`` is empty for a whole artifact; ``content`` is the model's content hash, "" where it was not read.

    ``notes`` says what is no fault and worth knowing.
    """

    findings: tuple[Finding, ...]
    files: int
    content: str
    notes: tuple[str, ...] = ()


def verify_artifact(path: Path, installation: Installation, *, read_weights: bool = True) -> Verification:
    """Look at every file of the artifact at ``path``; ``read_weights`` also reads a linked model's tensors.

    Raises ArtifactError where ``path`` is no artifact at all or its card cannot be read, since nothing else can be
    judged then.
    """
    card = read_card(path)
    findings = [*_listed(path, card), *_unlisted(path, card), *_sealed(path, card)]
    content = ""
    notes: tuple[str, ...] = ()
    if not findings:
        try:
            artifact = read_artifact(path, installation)
            notes = artifact.notes
            content = artifact.lock.content if artifact.manifest.materialised else ""
            if read_weights and not artifact.manifest.materialised:
                content = hash_content(artifact.open_weights().files)
                if artifact.lock.content not in ("", content):
                    fault = "the model's tensors are not those that the lock names: they were changed since"
                    findings.append(Finding(file=layout.LOCK, fault=fault))
        except CacheIRError as error:
            findings.append(Finding(file="", fault=str(error)))
    count = len(card.files) + sum((path / name).is_file() for name in layout.SEALED)
    return Verification(findings=tuple(findings), files=count, content=content, notes=notes)


def _listed(path: Path, card: Card) -> list[Finding]:
    findings = []
    for name, record in sorted(card.files.items()):
        try:
            file = layout.inside(path, name)
            if not file.is_file():
                findings.append(Finding(file=name, fault="is missing"))
            elif file.stat().st_size != record.nbytes:
                fault = f"has {file.stat().st_size} bytes, {record.nbytes} were written"
                findings.append(Finding(file=name, fault=fault))
            elif digest_file(file) != record.sha256:
                findings.append(Finding(file=name, fault="has other content than was written"))
        except OSError as error:
            findings.append(Finding(file=name, fault=f"cannot be read: {error.strerror or error}"))
        except ArtifactError as error:
            findings.append(Finding(file=name, fault=str(error)))
    return findings


def _unlisted(path: Path, card: Card) -> list[Finding]:
    known = {*card.files, *layout.SEALED}
    found = sorted(str(file.relative_to(path).as_posix()) for file in path.rglob("*") if not file.is_dir())
    return [Finding(file=name, fault="does not belong to the artifact") for name in found if name not in known]


def _sealed(path: Path, card: Card) -> list[Finding]:
    findings = []
    for name in (layout.LOCK, layout.TIMES, layout.LOCATION):
        if name == layout.LOCATION and not (path / name).is_file():
            continue
        try:
            open_sealed(layout.read_bytes(path, name), name)
        except ArtifactError as error:
            findings.append(Finding(file=name, fault=str(error)))
    if not findings and read_lock(path).program_key != card.program_key:
        findings.append(Finding(file=layout.LOCK, fault=f"has another program key than {layout.CARD}"))
    return findings
