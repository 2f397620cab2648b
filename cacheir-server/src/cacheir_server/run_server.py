"""Runs the application under uvicorn, and ends it gently: no new work, then the answers under way, then the rest."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI

from cacheir.errors import UsageError
from cacheir_server.service import Service

# Header bytes and idle time of a connection; a client that sends a header byte by byte is cut off.
_MAX_HEADER_BYTES = 64 << 10
_KEEP_ALIVE_S = 15
_BACKLOG = 2048


def run_server(app: FastAPI, service: Service, host: str, port: int) -> None:
    """Serves until SIGINT or SIGTERM; ``UsageError`` where the address cannot be had."""
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {service.settings.model_name} at http://{shown}:{listener.getsockname()[1]}", file=sys.stderr)
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_S,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_graceful_shutdown=max(1, int(service.settings.drain_s)),
        server_header=False,
    )
    asyncio.run(_serve(uvicorn.Server(config), service, listener))


async def _serve(server: uvicorn.Server, service: Service, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: _stop(server, stopping))
    # uvicorn's own handlers would stop taking connections at once, and /ready could not say why.
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        print("draining: answers under way come to their ends", file=sys.stderr)
        draining = asyncio.ensure_future(asyncio.to_thread(service.thread.drain, service.settings.drain_s))
        await asyncio.wait({serving, draining}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():  # a second signal: nothing is waited for, and the drain ends with the engine
            await asyncio.to_thread(service.thread.close)
        await draining
        server.should_exit = True
    stopped.cancel()
    await serving


def _stop(server: uvicorn.Server, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        server.should_exit = server.force_exit = True
    stopping.set()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # before the address is told: who reads it may come at once
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}", hint="choose another --port") from None
    return listener
