"""An artifact that was opened: the folder, what is in it, and its weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from cacheir import settings
from cacheir.artifact import layout
from cacheir.artifact.card import Card
from cacheir.artifact.lock import Lock, learn_content
from cacheir.artifact.pass_files import read_records
from cacheir.artifact.weights_manifest import Manifest
from cacheir.errors import ArtifactDamagedError
from cacheir.plugins.specs import PassRecord, QuantFormatSpec, UnpackerSpec
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.program import Program
from cacheir.weights.store import WeightStore, open_weights


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """``weights_root`` is the folder that the manifest's files lie in: the model's, or the artifact's own.

    ``has_location`` tells a folder that names its model's from one in the cache, which serves every model of the same
    headers. ``notes`` says in sentences what was decided while opening it: which kernels refuse on this machine and
    what runs instead. ``formats`` are the installed block formats, ``unpackers`` the
    ways to make a weight of several tensors. ``origin`` is ``artifact`` for one that was read
    where the user named it, ``cache`` for one of the cache, ``compiled`` for one that was just made; ``made_records``
    are then at hand, and the folder may be missing where it could not be written.
    """

    path: Path
    card: Card
    lock: Lock
    program: Program
    manifest: Manifest
    weights_root: Path
    has_location: bool
    formats: Mapping[str, QuantFormatSpec]
    unpackers: Mapping[str, UnpackerSpec] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origin: str = "artifact"
    made_records: tuple[PassRecord, ...] = ()

    @property
    def carried(self) -> Path | None:
        """The folder of what the backend sent with the weights, None where it sent nothing. Not to be believed."""
        folder = self.path / layout.CARRIED
        return folder if folder.is_dir() else None

    def records(self) -> tuple[PassRecord, ...]:
        """What each pass did, from the folder unless it was just compiled."""
        return self.made_records or read_records(self.path)

    def open_weights(self, cache: Path | None = None) -> WeightStore:
        """The weights; files are opened when they are first asked for.

        ``cache`` is the folder where content hashes are remembered, the one of the settings without it. The hash also
        goes into the lock of an artifact that names its model; once it is there, reading the last of other tensors
        raises ArtifactDamagedError.
        """
        return open_weights(
            self.program,
            self.weights_root,
            self.formats,
            unpackers=self.unpackers,
            content=self.lock.content if self.manifest.materialised else "",
            cache=cache or settings.cache_dir(),
            on_content=self._learn if self.has_location else None,
        )

    def _learn(self, content: str) -> None:
        if not self.lock.content:
            reason = learn_content(self.path, content)
            if reason:
                print(f"cacheir: the content hash is not kept in the artifact: {reason}", file=sys.stderr)
        elif self.lock.content != content:
            raise ArtifactDamagedError(
                f"{self.path}: the tensors in {self.weights_root} are not those that the artifact was used with before",
                hint="compile the model again",
            )
