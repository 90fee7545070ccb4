"""The OpenTelemetry spans of a request: one for it, and a child for each of its phases.

The names of attributes follow OpenTelemetry's semantic conventions for HTTP servers and
for generative AI; names that begin with trioserve are our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from ...types.version import __version__
from .progress import EndedRequest, TraceHeaders

# The operations that the conventions name, by route.
_OPERATIONS: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/api/chat": "chat",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/embed": "embeddings",
    "/v2/embed": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/pooling": "embeddings",
}

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class SpanMaker:
    """Makes spans, by the sampler and the resource that the environment names."""

    def __init__(self) -> None:
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            ours = {SERVICE_NAME: "trioserve", "service.version": __version__}
            resource = resource.merge(Resource(ours))
        self._ended = _Ended()
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("trioserve", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def make(self, request: EndedRequest, ended_at_ns: int) -> list[ReadableSpan]:
        """Return the spans of a request; none if its trace is not sampled.

        Args:
          ended_at_ns: the end of the request, in nanoseconds since 1970.
        """

        def to_ns(at: float) -> int:
            return ended_at_ns - round(1e9 * (request.ended_at - at))

        whole = self._tracer.start_span(
            _name(request),
            self._find_parent(request.trace),
            SpanKind.SERVER,
            dict(_list_attributes(request)),
            start_time=to_ns(request.arrived_at),
        )
        inside = set_span_in_context(whole, Context())
        for phase in request.spans:
            child = self._tracer.start_span(
                phase.phase, inside, start_time=to_ns(phase.begins_at)
            )
            child.end(to_ns(phase.ends_at))
        if _is_failure(request):
            whole.set_status(Status(StatusCode.ERROR))
        whole.end(ended_at_ns)
        return self._ended.take()

    def _find_parent(self, trace: TraceHeaders | None) -> Context:
        """Return the client's span; an empty context if it has none, or a malformed one."""
        if trace is None:
            return Context()
        headers = {"traceparent": trace.traceparent}
        if trace.tracestate is not None:
            headers["tracestate"] = trace.tracestate
        return self._propagator.extract(headers, Context())


class _Ended(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


def _name(request: EndedRequest) -> str:
    """Name a span by few names: clients choose paths and methods."""
    operation = _find_operation(request)
    if operation is not None and request.model is not None:
        return f"{operation} {request.model}"
    method = _find_method(request)
    return method if request.route is None else f"{method} {request.route}"


def _find_operation(request: EndedRequest) -> str | None:
    if request.method != "POST" or request.route is None:
        return None
    return _OPERATIONS.get(request.route)


def _find_method(request: EndedRequest) -> str:
    return request.method if request.method in _METHODS else "_OTHER"


def _is_failure(request: EndedRequest) -> bool:
    """Return whether the server failed. To refuse a request is not a failure (4xx)."""
    if request.status is None:
        return request.ending == "cut"
    return request.ending == "cut" or (
        request.ending == "error" and not 400 <= request.status < 500
    )


def _list_attributes(request: EndedRequest) -> Iterator[tuple[str, AttributeValue]]:
    yield "http.request.method", _find_method(request)
    yield "url.path", request.path
    yield "trioserve.request.id", request.id
    yield "trioserve.ending", request.ending
    found = {
        "http.route": request.route,
        "http.response.status_code": request.status,
        "error.type": request.error,
        "trioserve.key": request.key,
        "trioserve.phase": request.phase,
    }
    yield from ((name, value) for name, value in found.items() if value is not None)
    if operation := _find_operation(request):
        yield "gen_ai.operation.name", operation
        yield from _list_model_attributes(request)


def _list_model_attributes(
    request: EndedRequest,
) -> Iterator[tuple[str, AttributeValue]]:
    yield "gen_ai.provider.name", "trioserve"
    if request.model is not None:
        yield "gen_ai.request.model", request.model
        yield "gen_ai.response.model", request.model
    if request.finish_reasons:
        yield "gen_ai.response.finish_reasons", sorted(request.finish_reasons)
    if (tokens := request.tokens) is not None:
        yield "gen_ai.usage.input_tokens", tokens.prompt
        yield "gen_ai.usage.cache_read.input_tokens", tokens.cached
        yield "gen_ai.usage.output_tokens", tokens.completion
    if (sampling := request.sampling) is not None:
        yield "gen_ai.request.choice.count", sampling.n
        yield "gen_ai.request.temperature", sampling.temperature
        yield "gen_ai.request.top_p", sampling.top_p
        if sampling.max_tokens is not None:
            yield "gen_ai.request.max_tokens", sampling.max_tokens
