"""Fuzzes the readers of GGUF, safetensors, NPZ, ONNX and StableHLO, and keeps its last lines beside itself.

    python benchmarks/soak/fuzz_readers.py --seconds 3600        or: make soak

Each reader runs in a child of its own for its share of the time, on valid files that were changed in their structure
and in their bytes. Found is: an exception that is no CacheIRError, the end of the process by a signal, more than 2 s of
processor time for one file, more than 300 MB of growth. The file that did it is kept in ``--found``; seed and number
make it again: ``--again gguf:SEED:NUMBER``. Exits with 1 where anything was found.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import platform
import resource
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

HANG_SECONDS = 2.0  # of processor time
STANDSTILL_SECONDS = 60.0  # of any time: a read that waits for something
GROWTH_BYTES = 300 << 20
WARM_CASES = 20
FEWEST_CASES = 400  # that a child tries, since a busy machine may give it no turn within its time
ADDRESS_BYTES = 8 << 30  # beyond which an allocation fails in the child instead of troubling the machine
READER_NAMES = ("gguf", "safetensors", "npz", "onnx", "stablehlo")
# Files that live for a millisecond should not reach a disk.
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
OUT = Path(__file__).with_name("fuzz_readers.txt")
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_BEAT = struct.Struct("<QQQQ")  # number of the case, processor time when it began (ns), accepted, refused


class Worker:
    """The child's side: one case after another, each announced before it is read."""

    def __init__(self, name: str, seed: str, folder: Path, beat: Path) -> None:
        from readers import READERS

        self.name, self.seed, self.folder, self.reader = name, seed, folder, READERS[name]
        self.change = self.reader.prepare(folder)
        with beat.open("r+b") as file:
            self._beat = mmap.mmap(file.fileno(), _BEAT.size)
        self.accepted = self.refused = 0

    def run(self, first: int, seconds: float) -> None:
        """Cases from ``first`` on, until the time is over and ``FEWEST_CASES`` are tried."""
        from cacheir.errors import CacheIRError

        base, number, end = 0, first, time.monotonic() + seconds
        while time.monotonic() < end or number < first + FEWEST_CASES:
            began = time.process_time_ns()
            self._beat[:] = _BEAT.pack(number, began, self.accepted, self.refused)
            fault = self._attempt(CacheIRError, number)
            if fault:
                print(f"CRASH {number} {fault}", flush=True)
            if (spent := (time.process_time_ns() - began) / 1e9) > HANG_SECONDS:
                print(f"HANG {number} {spent:.1f} s of processor time", flush=True)
            if number == first + WARM_CASES:  # what is imported late is no growth
                base = peak_bytes()
            if base and peak_bytes() - base > GROWTH_BYTES:
                print(f"GROWTH {number} {(peak_bytes() - base) >> 20} MB", flush=True)
                return  # the next child begins with a peak of its own
            number += 1
        self._beat[:] = _BEAT.pack(number, time.process_time_ns(), self.accepted, self.refused)
        print("DONE", flush=True)

    def _attempt(self, refusal: type[Exception], number: int) -> str:
        """Change, write and read one file; gives what was wrong, "" for nothing."""
        name, data = self.change(Random(f"{self.seed}:{number}"))
        (self.folder / name).write_bytes(data)
        try:
            self.reader.read(self.folder, name)
            self.accepted += 1
        except refusal:
            self.refused += 1
        except BaseException as error:  # noqa: BLE001  whatever it is, it is what is looked for
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = " ".join(str(error).split())[:160]
            return f"{type(error).__name__}: {said} ({Path(place.filename).name}:{place.lineno})"
        return ""


def peak_bytes() -> int:
    """The most memory that this process has had resident. Not ru_maxrss: that begins with the parent's peak."""
    with open("/proc/self/status", "rb") as file:
        text = file.read()
    return int(text[text.index(b"VmHWM:") + 6 :].split(None, 1)[0]) << 10


def processor_seconds(pid: int) -> float:
    """Processor time of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fuzz(name: str, seconds: float, seed: str, found: Path) -> tuple[str, int]:
    """One reader for so many seconds; gives its line, and how much was found."""
    faults: list[str] = []
    cases = accepted = refused = 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="cacheir-fuzz-", dir=SCRATCH) as temporary:
        beat = Path(temporary) / "beat"
        while (left := end - time.monotonic()) > 0:
            beat.write_bytes(bytes(_BEAT.size))
            folder = Path(temporary) / "files"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            said, number, ok, no = watch(name, seed, cases, left, folder, beat)
            accepted, refused = accepted + ok, refused + no
            for line in said:
                faults.append(f"{name}: {line}")
                keep(name, seed, int(line.split()[1]), found)
            cases = number + 1
            if len(faults) > 50:
                break
    line = (
        f"{name:12} {seconds:7.0f} s  {cases:9} files, {accepted} read, {refused} refused, found: {len(faults)}"
        f"  (seed {seed})"
    )
    print(line, *faults, sep="\n", flush=True)
    return "\n".join([line, *faults]), len(faults)


def watch(
    name: str, seed: str, first: int, seconds: float, folder: Path, beat: Path
) -> tuple[list[str], int, int, int]:
    """One child, until it ends or hangs; gives what was found, the last case, how many were read and refused."""
    log = beat.with_name("log")
    words = [__file__, "--worker", name, "--seed", seed, "--first", str(first), "--seconds", str(seconds)]
    with log.open("w+") as output:
        child = subprocess.Popen(
            [sys.executable, *words, "--folder", str(folder), "--beat", str(beat)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        found, last, since = [], 0, time.monotonic()
        while child.poll() is None:
            time.sleep(0.1)
            number, began, _, _ = _BEAT.unpack(beat.read_bytes())
            if (number, began) != last:
                last, since = (number, began), time.monotonic()
                continue
            if child.poll() is not None:
                continue
            spent = processor_seconds(child.pid) - began / 1e9 if began else 0.0  # importing is no case
            if spent > HANG_SECONDS or time.monotonic() - since > STANDSTILL_SECONDS:
                child.kill()
                child.wait()
                found.append(f"HANG {number} {spent:.1f} s of processor time")
                break
        output.seek(0)
        lines = output.read().splitlines()
    number, _, accepted, refused = _BEAT.unpack(beat.read_bytes())
    found += [line for line in lines if line.startswith(("CRASH ", "GROWTH ", "HANG "))]
    if not found and (not lines or lines[-1] != "DONE"):
        found.append(f"CRASH {number} the process ended with {child.returncode}: {' '.join(lines[-1:])[:200]}")
    return found, number, accepted, refused


def keep(name: str, seed: str, number: int, found: Path) -> None:
    """Put the file of a case into ``found``."""
    from readers import READERS

    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cacheir-fuzz-", dir=SCRATCH) as folder:
        file, data = READERS[name].prepare(Path(folder))(Random(f"{seed}:{number}"))
    (found / f"{name}-{seed}-{number}-{Path(file).name}").write_bytes(data)


def again(case: str) -> None:
    """Read the file of one case, with its traceback."""
    name, seed, number = case.split(":")
    with tempfile.TemporaryDirectory(prefix="cacheir-fuzz-", dir=SCRATCH) as folder:
        from readers import READERS

        file, data = READERS[name].prepare(Path(folder))(Random(f"{seed}:{number}"))
        (Path(folder) / file).write_bytes(data)
        began = time.process_time()
        try:
            READERS[name].read(Path(folder), file)
        finally:
            print(f"{file}: {len(data)} bytes, {time.process_time() - began:.2f} s of processor time", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers of model files.")
    parser.add_argument("--seconds", type=float, default=300.0, help="for all readers together")
    parser.add_argument("--readers", default=",".join(READER_NAMES), help="names, separated by commas")
    parser.add_argument("--seed", default="", help="a new one where it is not given")
    parser.add_argument("--out", type=Path, default=OUT, help="where the last lines go")
    parser.add_argument("--found", type=Path, default=Path(".tmp") / "fuzz", help="where files that did harm are kept")
    parser.add_argument("--again", default="", help="READER:SEED:NUMBER, one case with its traceback")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--beat", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)  # a child that hangs would stay for ever
        Worker(asked.worker, asked.seed, asked.folder, asked.beat).run(asked.first, asked.seconds)
        return 0
    if asked.again:
        again(asked.again)
        return 0
    names = asked.readers.split(",")
    seed = asked.seed or secrets.token_hex(4)
    head = f"python {platform.python_version()}, {asked.seconds:.0f} s for {', '.join(names)}"
    print(head, flush=True)
    results = [fuzz(name, asked.seconds / len(names), seed, asked.found) for name in names]
    asked.out.write_text("\n".join([head, *(line for line, _ in results)]) + "\n", encoding="utf-8")
    return int(any(count for _, count in results))


if __name__ == "__main__":
    sys.exit(main())
