"""What an artifact folder holds: file names, the format version, and what is outside the guarantee of equal bytes."""

from __future__ import annotations

import re
from pathlib import Path

from cacheir.errors import ArtifactDamagedError, ArtifactError

FORMAT = 1
OLDEST_FORMAT = 1

CARD = "artifact.json"
LOCK = "lock.json"
RECORDS = "passes/records.json"
TIMES = "passes/times.json"
MANIFEST = "weights/manifest.json"
LOCATION = "weights/location.json"
TENSORS = "weights/weights.safetensors"
TOKENIZER = "tokenizer/tokenizer_source.json"
GENERATION = "tokenizer/generation.json"
TOKENIZER_FILES = "tokenizer/files"
CARRIED = "kernels"

# Not listed in artifact.json, each with its own seal: lock.json learns the content hash at the first load, the other
# two say when and where the compile ran.
SEALED = (CARD, LOCK, TIMES, LOCATION)

LARGEST_TEXT = 256 << 20  # bytes: what is read into memory at once, weights never are

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*){0,3}")


def graph_file(mode: str) -> str:
    """The text of the module of ``mode``."""
    return f"graphs/{mode}.cir"


def schedule_file(mode: str) -> str:
    """The schedule of ``mode``."""
    return f"schedules/{mode}.json"


def plan_file(mode: str) -> str:
    """The memory plan of ``mode``."""
    return f"plans/{mode}.json"


def is_artifact(path: Path) -> bool:
    """Whether ``path`` is an artifact folder: artifact.json is written last, so an unfinished one is none."""
    return (path / CARD).is_file()


def inside(folder: Path, name: str) -> Path:
    """The path of the artifact's file ``name``; ArtifactDamagedError for a name that could lead out of the folder."""
    if len(name) > 240 or not _NAME.fullmatch(name):
        raise ArtifactDamagedError(f"{folder}: {name!r} is no name of a file in an artifact")
    return folder / name


def read_bytes(folder: Path, name: str) -> bytes:
    """The content of the file ``name``. ArtifactDamagedError where it is missing, too large or no plain file."""
    path = inside(folder, name)
    if path.exists() and not path.is_file():
        raise ArtifactDamagedError(f"{folder}: {name} is no plain file")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_TEXT + 1)
    except FileNotFoundError as error:
        raise ArtifactDamagedError(f"{folder}: {name} is missing", hint="compile the model again") from error
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > LARGEST_TEXT:
        raise ArtifactDamagedError(f"{folder}: {name} has more than {LARGEST_TEXT} bytes")
    return data
