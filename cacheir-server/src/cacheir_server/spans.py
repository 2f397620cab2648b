"""OpenTelemetry: one span for each request that reads a body, from its first byte to the end of its last answer.

Nothing of the library is imported before ``make_spans``, which ``cacheir serve --otel`` calls.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from cacheir.errors import UsageError
from cacheir.runtime.engine.job import Event, Job, Sink, Usage
from cacheir_server.guards import App, Message, Receive, Scope, Send
from cacheir_server.span_export import check_variables, complain_once

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

# The worst first: the outcome of a request is the worst of its answers'.
_WORST_FIRST = ("error", "deadline", "cancelled", "length", "stop")

_CURRENT: ContextVar[RequestSpan | None] = ContextVar("cacheir_request_span", default=None)


class Spans:
    """Makes the spans of one server; ``close`` sends what is left."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("cacheir_server")

    def begin(self, scope: Scope) -> RequestSpan:
        """A span for a request, below the caller's own where ``traceparent`` names one."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {
            bytes(name).decode("latin-1").lower(): bytes(value).decode("latin-1") for name, value in scope["headers"]
        }
        span = self._tracer.start_span(
            f"{scope['method']} {scope['path']}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": scope["method"], "http.route": scope["path"]},
        )
        return RequestSpan(span)

    def close(self) -> None:
        """Ends the exporter, within its own time limit."""
        self._provider.shutdown()


class RequestSpan:
    """Ends once the response is out and every job has ended; jobs end on the engine's thread."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._lock = threading.Lock()
        self._open = 1  # the response, and one for each job
        self._status = 0
        self._usages: list[tuple[Job, Usage]] = []
        self._outcomes: set[str] = set()

    def observing(self, jobs: Sequence[Job], sink: Sink) -> Sink:
        """``sink``, which is told last events alone, and this span with it."""
        known = {job.id: job for job in jobs}
        with self._lock:
            self._open += len(jobs)

        def observe(event: Event) -> None:
            sink(event)
            if event.outcome is not None:
                self._outcomes.add(event.outcome)
            if event.usage is not None:
                self._usages.append((known[event.job_id], event.usage))
            self._done(1)

        return observe

    def never_ran(self, jobs: Sequence[Job]) -> None:
        """The engine did not take ``jobs``, so that nothing more comes of them."""
        self._done(len(jobs))

    def responded(self, status: int) -> None:
        """The response is out, or the client is gone (``status`` 0 where no status line was sent)."""
        self._status = status
        self._done(1)

    def _done(self, count: int) -> None:
        with self._lock:
            self._open -= count
            if self._open:
                return
        self._end()

    def _end(self) -> None:
        from opentelemetry.trace import StatusCode

        span, usages = self._span, [usage for _, usage in self._usages]
        if self._status:
            span.set_attribute("http.response.status_code", self._status)
        if usages:
            # A prompt that several answers continue was read once.
            span.set_attribute("gen_ai.usage.input_tokens", sum(map(len, {job.ids for job, _ in self._usages})))
            span.set_attribute("gen_ai.usage.output_tokens", sum(usage.sampled_tokens for usage in usages))
            # Both are of whichever answer came first: the longest wait could be longer than the first token took.
            span.set_attribute("cacheir.queue_wait_ms", min(usage.queue_ms for usage in usages))
            span.set_attribute("cacheir.time_to_first_token_ms", min(usage.ttft_ms for usage in usages))
        outcome = next((one for one in _WORST_FIRST if one in self._outcomes), "")
        if not outcome and self._status >= 400:
            outcome = "refused" if self._status == 429 else "rejected" if self._status < 500 else "error"
        if outcome:
            span.set_attribute("cacheir.outcome", outcome)
        if outcome == "error" or self._status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()


class SpanGuard:
    """Plain ASGI around everything else, so that what is refused has a span too. Other paths have none."""

    def __init__(self, app: App, spans: Spans, paths: frozenset[str]) -> None:
        self._app = app
        self._spans = spans
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        span, status = self._spans.begin(scope), 0
        token = _CURRENT.set(span)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            status = status or 500
            raise
        finally:
            _CURRENT.reset(token)
            span.responded(status)


def current_span() -> RequestSpan | None:
    """The span of the request that is being handled; None without ``--otel``."""
    return _CURRENT.get()


def make_spans() -> Spans:
    """Spans that go to an OTLP endpoint over HTTP, as the standard ``OTEL_*`` variables say.

    ``UsageError`` where the library is not installed, or could not follow a variable. What it complains of later, such
    as a collector that does not answer, is said once.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise UsageError(
            "--otel needs OpenTelemetry, which is not installed",
            hint="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http (the extra `otel`)",
        ) from None
    check_variables()
    complain_once()
    named = OTELResourceDetector().detect().attributes
    provider = TracerProvider(resource=Resource.create({"service.name": "cacheir", **named}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Spans(provider)
