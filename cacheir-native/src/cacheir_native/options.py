"""What the native backend can be told beyond ``ExecutorOptions``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cacheir.errors import UsageError

SCREENS = ("auto", "off", "always")
SCREEN_VARIABLE = "CACHEIR_NATIVE_SCREEN"


@dataclass(frozen=True, kw_only=True)
class NativeOptions:
    """``pin`` ties each thread to a core of its own: for a process that has its cores to itself.

    ``screen`` says whether greedy steps find the largest logit by a smaller copy of the head, with the same tokens:
    ``auto`` after 64 of them and while it pays, ``off``, or ``always``, from the first one on and in heads of any size,
    for tests. UsageError for a value that none can be.
    """

    pin: bool = False
    screen: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.pin, bool):
            raise UsageError(f"pin is {self.pin!r}, which is neither true nor false")
        if self.screen not in SCREENS:
            raise UsageError(f"screen is {self.screen!r}, which is none of {', '.join(SCREENS)}")


def read_options(extra: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> NativeOptions:
    """What ``ExecutorOptions.extra`` says of the fields of ``NativeOptions``, else the environment, else defaults.

    UsageError for a value that none can be, in either.
    """
    screen = environment.get(SCREEN_VARIABLE, "")
    if screen and screen not in SCREENS:
        raise UsageError(f"{SCREEN_VARIABLE} is {screen!r}, which is none of {', '.join(SCREENS)}")
    return NativeOptions(**{**({"screen": screen} if screen else {}), **extra})
