"""A mode's program as one flat list of launches; the code lives in core, since every CPU backend walks a program so."""

from __future__ import annotations

from cacheir.schedule.flatten import Launch, Place, flatten

__all__ = ["Launch", "Place", "flatten"]
