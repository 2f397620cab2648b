"""Runs an op that has no kernel by its meaning, on the host, and counts how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cacheir.plugins.installation import Installation
from cacheir.reference.interpreter import Interpreter
from cacheir.schedule.flatten import Launch
from cacheir_cuda.tensors import fill, to_host


class ByMeaning:
    """Ops of ``installation`` by their meaning; ``count`` says how many ran."""

    def __init__(self, installation: Installation) -> None:
        self._interpreter = Interpreter(installation.ops.by_name())
        self.count = 0

    def run(self, launch: Launch, operands: Sequence[Any], outs: Sequence[Any], sizes: Mapping[str, int]) -> None:
        """The launch's operands go to the host, its results come back."""
        self.count += 1
        host = [to_host(operand) for operand in operands]
        with np.errstate(all="ignore"):
            made = self._interpreter.apply(launch.op, host, sizes, launch.layer)
        for out, result in zip(outs, made):
            if isinstance(out, torch.Tensor):
                fill(out, np.asarray(result))
