"""Whose turn it is, where several measurements open their engines together and then run one after the other."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


class Turns:
    """``text`` is FOLDER:NUMBER:COUNT, "" for one alone; NUMBER from 0.

    Each stage is run by all members in the order of their numbers before the next stage begins. Members are those that
    were ready when all were, or at ``ready_until`` (seconds since the epoch); who comes later runs after all of them.
    What is known lies in FOLDER as empty files: ``ready.N``, ``done.N.STAGE``, ``left.N``, and ``members``.
    """

    def __init__(self, text: str, ready_until: float = float("inf")) -> None:
        self._folder: Path | None = None
        self._ready_until = ready_until
        self._members: list[int] = []
        if text:
            folder, number, count = text.rsplit(":", 2)
            self._folder, self._number, self._count = Path(folder), int(number), int(count)
            self._folder.mkdir(parents=True, exist_ok=True)

    def ready(self) -> None:
        """Say that this one is ready; go on when all are, or when it is too late to wait for the others."""
        if self._folder is None:
            return
        self._touch(f"ready.{self._number}")
        members = self._folder / "members"
        while not members.exists():
            found = [number for number in range(self._count) if self._has(f"ready.{number}")]
            if len(found) == self._count or time.time() > self._ready_until:
                written = self._folder / f"members.{self._number}"
                written.write_text(" ".join(map(str, found)))
                with contextlib.suppress(FileExistsError):  # another one said it first
                    os.link(written, members)
            else:
                time.sleep(0.1)
        self._members = [int(number) for number in members.read_text().split()]
        while self._number not in self._members and not all(self._has(f"left.{each}") for each in self._members):
            time.sleep(0.1)

    def begin(self, stage: int) -> None:
        """Go on when the members before this one are done with ``stage``, and all with the stage before."""
        if self._folder is None or self._number not in self._members:
            return
        before = [(each, stage) for each in self._members if each < self._number]
        before += [(each, stage - 1) for each in self._members if stage]
        while not all(self._has(f"done.{each}.{at}") or self._has(f"left.{each}") for each, at in before):
            time.sleep(0.1)

    def end(self, stage: int) -> None:
        """Let the next one go on."""
        if self._folder is not None:
            self._touch(f"done.{self._number}.{stage}")

    def leave(self) -> None:
        """Nobody waits for this one any more."""
        if self._folder is not None:
            self._touch(f"left.{self._number}")
            self._touch(f"ready.{self._number}")

    def _has(self, name: str) -> bool:
        return self._folder is not None and (self._folder / name).exists()

    def _touch(self, name: str) -> None:
        if self._folder is not None:
            (self._folder / name).touch()
