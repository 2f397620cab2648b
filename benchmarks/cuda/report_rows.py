"""The rows of a run on a GPU: each is written as soon as it is there, one that fails is a row with its reason."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch


class ReportRows:
    """``keep`` runs a row and writes all so far to ``out``; with ``wanted`` names only those rows run."""

    def __init__(self, out: Path, wanted: Sequence[str]) -> None:
        self._out, self._wanted = out, wanted
        device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "the processor"
        self.made: dict[str, Any] = {"torch": torch.__version__, "device": device}

    def keep(self, name: str, run: Callable[[], Any]) -> None:
        """The row ``name``."""
        if self._wanted and name not in self._wanted:
            return
        began = time.perf_counter()
        try:
            self.made[name] = run()
        except Exception as error:  # noqa: BLE001  a row that failed is a row of the report
            self.made[name] = {"failed": f"{type(error).__name__}: {error}"[:2500]}
        self.made["measured"] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        self._out.write_text(json.dumps(self.made, indent=1) + "\n")
        print(f"{name} [{time.perf_counter() - began:.0f} s]", json.dumps(self.made[name])[:1200], flush=True)
