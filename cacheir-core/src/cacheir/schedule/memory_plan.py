"""The memory plan as data: a frame for each graph, stacked by the calls; sizes are taken at the upper bounds."""

from __future__ import annotations

from collections.abc import Mapping

from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """A buffer's place in its graph's frame, in bytes; alive from entry ``first`` to entry ``last``, both included."""

    offset: int
    nbytes: int
    first: int
    last: int
    in_place_of: str = ""  # the operand whose place it takes over


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The buffers of one graph. ``nbytes`` is the frame's own size, ``with_callees`` that with the deepest stack on it.

    ``call_bases`` gives, for each call entry's node, the offset in this frame at which the callee's frame begins: above
    all buffers that are alive across the call. ``unplanned`` lists results that some row class's kernel returns in a
    fresh array: memory beside the plan, for as long as the executor takes to copy it into the value's place.
    """

    graph: str
    nbytes: int
    with_callees: int
    places: Mapping[str, Place]
    call_bases: Mapping[str, int]
    unplanned: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The frames of one mode.

    Main's frame and a head's both begin at offset 0 of the arena: a head runs after main, whose outputs lie with the
    executor. ``arena_bytes`` holds the largest of them with everything it calls.
    """

    mode: str
    alignment: int
    arena_bytes: int
    frames: tuple[Frame, ...]

    def frame(self, graph: str) -> Frame:
        """The frame of ``graph``; KeyError where there is none."""
        for frame in self.frames:
            if frame.graph == graph:
                return frame
        raise KeyError(graph)
