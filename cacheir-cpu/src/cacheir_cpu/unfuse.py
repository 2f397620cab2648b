"""Nodes that run by their meaning although a kernel takes them; the code lives in core."""

from __future__ import annotations

from cacheir.schedule.unfuse import unfuse

__all__ = ["unfuse"]
