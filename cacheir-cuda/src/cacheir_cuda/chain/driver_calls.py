"""The part of the CUDA driver that the CUDA C++ kernels need, called by ctypes: modules, launches, captures, graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass

from cacheir.errors import BackendError
from cacheir_cuda.driver import LIBRARY

PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MOST_SHARED, CARVEOUT = 8, 9  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, .._PREFERRED_SHARED_MEMORY_CARVEOUT
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_uint64 * 8))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3), ("block", c_uint * 3), ("shared_bytes", c_uint), ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)), ("attribute_count", c_uint),
    )  # fmt: skip


class _EdgeData(ctypes.Structure):
    _fields_ = (("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5))


_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (POINTER(_LaunchConfig), c_void_p, POINTER(c_void_p), c_void_p),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_uint64),
    "cuGraphGetNodes": (c_void_p, c_void_p, POINTER(c_size_t)),
    "cuGraphGetEdges_v2": (c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_size_t)),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
}


@dataclass(frozen=True)
class Graph:
    """An instantiated graph: its handle, how many nodes it has, and how many of its edges are programmatic."""

    handle: c_void_p
    nodes: int
    edges: int
    programmatic_edges: int


class Driver:
    """The driver's calls on the context that is current, which torch has made. Raises BackendError where one fails."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        for name, arguments in _SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments

    def load(self, image: bytes) -> c_void_p:
        """A module of a cubin."""
        module = c_void_p()
        self._call("cuModuleLoadData", byref(module), image)
        return module

    def unload(self, module: c_void_p) -> None:
        """Let go of a module and its functions."""
        self._call("cuModuleUnload", module)

    def function(self, module: c_void_p, name: str, shared_bytes: int) -> c_void_p:
        """A kernel that may take ``shared_bytes`` of dynamic shared memory.

        All kernels get the same split of cache and shared memory: a change of it waits for an idle multiprocessor.
        """
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), module, name.encode())
        self._call("cuFuncSetAttribute", function, MOST_SHARED, shared_bytes)
        self._call("cuFuncSetAttribute", function, CARVEOUT, 100)
        return function

    def launch(
        self,
        function: c_void_p,
        blocks: int | Sequence[int],
        threads: int,
        shared_bytes: int,
        stream: int,
        arguments: object,
        *,
        programmatic: bool = True,
    ) -> None:
        """Launch ``blocks`` (or three numbers of them) with one argument, a structure.

        A ``programmatic`` kernel may start before the one before it on ``stream`` ends: it waits by itself.
        """
        attribute = _Attribute(id=PROGRAMMATIC)
        attribute.value[0] = 1
        grid = (blocks, 1, 1) if isinstance(blocks, int) else tuple(blocks)
        config = _LaunchConfig(
            grid, (threads, 1, 1), shared_bytes, c_void_p(stream), ctypes.pointer(attribute), int(programmatic)
        )
        parameters = (c_void_p * 1)(ctypes.addressof(arguments))  # type: ignore[arg-type]
        self._call("cuLaunchKernelEx", byref(config), function, parameters, None)

    def begin_capture(self, stream: int) -> None:
        """What is launched on ``stream`` from now on is recorded."""
        self._call("cuStreamBeginCapture_v2", c_void_p(stream), THREAD_LOCAL)

    def end_capture(self, stream: int) -> Graph:
        """The launches since ``begin_capture`` as a graph."""
        graph, executable = c_void_p(), c_void_p()
        self._call("cuStreamEndCapture", c_void_p(stream), byref(graph))
        nodes, edges = c_size_t(), c_size_t()
        self._call("cuGraphGetNodes", graph, None, byref(nodes))
        self._call("cuGraphGetEdges_v2", graph, None, None, None, byref(edges))
        ends = (c_void_p * (2 * edges.value))()
        data = (_EdgeData * edges.value)()
        middle = ctypes.addressof(ends) + edges.value * ctypes.sizeof(c_void_p)
        self._call("cuGraphGetEdges_v2", graph, ctypes.addressof(ends), middle, ctypes.addressof(data), byref(edges))
        self._call("cuGraphInstantiateWithFlags", byref(executable), graph, 0)
        self._call("cuGraphDestroy", graph)
        return Graph(executable, nodes.value, edges.value, sum(edge.type == 1 for edge in data))

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy from pinned memory at ``source`` to ``target``, on ``stream``."""
        self._call("cuMemcpyHtoDAsync_v2", target, c_void_p(source), nbytes, c_void_p(stream))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy on ``stream``; both ends are the device's or pinned memory."""
        self._call("cuMemcpyAsync", target, source, nbytes, c_void_p(stream))

    def replay(self, graph: Graph, stream: int) -> None:
        """Launch ``graph`` on ``stream``."""
        self._call("cuGraphLaunch", graph.handle, c_void_p(stream))

    def destroy(self, graphs: Sequence[Graph]) -> None:
        """Let go of ``graphs``."""
        for graph in graphs:
            self._call("cuGraphExecDestroy", graph.handle)

    def _call(self, name: str, *arguments: object) -> None:
        status: int = getattr(self._library, name)(*arguments)
        if status:
            raise BackendError(f"the NVIDIA driver's {name} failed with CUDA error {status}")
