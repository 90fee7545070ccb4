"""Options of the server: HTTP, processes, socket and log."""

from __future__ import annotations

from dataclasses import dataclass
import math
import re
from typing import Literal

from ..errors import InvalidConfig
from .checks import FilePath, Size, check_at_least, check_seconds, parse_bytes

# As browsers write an origin: in lower case, and without a slash behind it. Extensions of
# browsers have schemes of their own.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+")

_HOST_NAME = re.compile(r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

_ENDPOINT = re.compile(r"https?://[^\s/?#]+[^\s?#]*")

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")

# The memory for the events of one stream that outlives its connection: about 840 tokens of a
# chat.
STREAM_LOG_BYTES = 2**18

_HOST, _PORT = "127.0.0.1", 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Limits of HTTP requests.

    Args:
      max_body_size: Longest request body; a longer one is answered 413.
      max_bodies_memory: Memory for the bodies of all requests until they are decoded. A
        request that does not fit is answered 503. One eighth is reserved for the first
        64 KiB of each body. One address may hold three quarters of what the others
        leave.
      body_timeout: Time limit for each 64 KiB of a body, and for the rest, in seconds;
        a slower upload is answered 408.
      api_key: A key that clients may show; all others are answered 401. Probes need no
        key. Other users of the machine can read it in the list of processes.
      api_key_file: File with a name and a key in each line; the key's weight and limits
        may follow. SIGHUP reads it again.
      adapter_folder: Folders from which /v1/load_lora_adapter may load. It and
        /v1/unload_lora_adapter are off without one. If clients need keys, they need the key
        of an administrator.
      guard_metrics: Let /metrics need a key, too.
      request_timeout: Time limit of a request that names none, in seconds; by default
        there is none. A request that reaches its limit is answered 504, or its stream
        ends with the finish reason "deadline".
      max_request_timeout: Longest time limit that a request may name, in seconds. A
        request without a limit gets this one. By default there is none.
      allowed_origins: Origins whose pages may use the API in a browser (CORS); * stands
        for all. They are written as https://chat.example. By default there are none.
      allowed_host: Host names allowed in requests, besides localhost and addresses.
        Others are answered 421. * stands for all. By default others are only refused over
        loopback, without a key and without TLS: a web page may point its own name to
        127.0.0.1.
      root_path: Path before all paths of the API, as clients of a proxy see them. The proxy
        may cut it off or not.
      ui: Serve a page with a chat and the running requests at /, and /docs. They need no
        key, but what the page asks of the API does.
      max_connections: Most open connections; by default as many as there are file
        descriptors. A further one takes the place of one without a request, or is
        answered 503.
      max_connections_per_address: Most open connections of one address, or of one /64 of
        IPv6; by default there is no limit. Behind a proxy all clients have one address.
      write_timeout: Time for a client to take 64 KiB of its answer, in seconds; or all that
        waits, if that is less. A slower client is dropped, and its request ends.
      max_unread_memory: Memory for tokens that clients have not taken yet. Beyond it, the
        streams with the most of them end with an error.
      sse_keepalive: Longest silence of a stream, in seconds; then a comment is sent, so
        that proxies keep the stream open. 0 sends none.
      request_log: File to which a line of JSON is added for each request; - stands for
        standard output. Prompts and answers are not in it. SIGHUP opens it again.
      refuse_late: Refuse a request at once if others would make it late; by the measured
        speed, it would exceed its time limit. It is answered 503, and Retry-After says
        when to come again.
      resume_seconds: Time for which streams outlive their connections, in seconds. A
        client goes on by Last-Event-ID. 0 ends each stream with its connection.
      max_resume_memory: Memory for the events of such streams, 256 KiB each. Further
        streams end with their connections.
      otlp_traces_endpoint: Address for OpenTelemetry traces, which are sent by HTTP; for
        example http://localhost:4318/v1/traces. It needs pip install 'trioserve[otel]'.
      enable_h2c: Speak HTTP/2 without TLS to clients that begin with its preface. A
        client is cut off if it floods the server with small frames, or if it takes less
        than 32 KiB in half of --write-timeout while more data waits.
      drain_timeout: Longest time for open requests after SIGTERM, in seconds; then they
        end with an error. A request whose body is not complete is answered 503 at once.
      progress_timeout: Longest time without progress until /progressz answers 503, in
        seconds. There is no progress when a step does not end, or when the engine
        process sends no message.
      max_responses_memory: Memory for stored responses of /v1/responses. The oldest are
        dropped first, and those that still run in the background last.
      response_max_age: Longest time for which a response is stored after its end, in
        seconds; 0 stores none.
      enable_tokenizer_info_endpoint: Serve GET /tokenizer_info. It shows the special
        tokens and the chat template to everybody.
      ignore_unknown_tools: Leave out tools that are not functions, such as web_search.
        Without it, a request with such a tool is refused, because the server runs none.
      max_background_responses: Responses that may run in the background at once. A
        further one is answered 429; 0 allows none.
    """

    max_body_size: Size = "64MiB"
    max_bodies_memory: Size = "1GiB"
    body_timeout: float = 10.0
    api_key: tuple[str, ...] = ()
    api_key_file: FilePath | None = None
    adapter_folder: tuple[FilePath, ...] = ()
    guard_metrics: bool = False
    request_timeout: float | None = None
    max_request_timeout: float | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_host: tuple[str, ...] = ()
    root_path: str | None = None
    ui: bool = True
    max_connections: int | None = None
    max_connections_per_address: int | None = None
    write_timeout: float = 30.0
    max_unread_memory: Size = "256MiB"
    sse_keepalive: float = 15.0
    request_log: FilePath | None = None
    otlp_traces_endpoint: str | None = None
    refuse_late: bool = True
    resume_seconds: float = 0.0
    max_resume_memory: Size = "64MiB"
    enable_h2c: bool = False
    drain_timeout: float = 30.0
    progress_timeout: float = 60.0
    max_responses_memory: Size = "256MiB"
    response_max_age: float = 3600.0
    enable_tokenizer_info_endpoint: bool = False
    ignore_unknown_tools: bool = False
    max_background_responses: int = 64

    @property
    def max_body_bytes(self) -> int:
        return parse_bytes("max_body_size", self.max_body_size)

    def __post_init__(self) -> None:
        memory = parse_bytes("max_bodies_memory", self.max_bodies_memory)
        # With twice as much, one address may hold one body of that size.
        if memory < 2 * self.max_body_bytes:
            raise InvalidConfig(
                "max_bodies_memory", "must be at least twice --max-body-size"
            )
        if self.guard_metrics and not (self.api_key or self.api_key_file):
            raise InvalidConfig("guard_metrics", "needs --api-key or --api-key-file")
        if not all(map(str.strip, self.adapter_folder)):
            raise InvalidConfig("adapter_folder", "has an empty name")
        check_seconds("body_timeout", self.body_timeout)
        for name in ("request_timeout", "max_request_timeout"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        if (self.request_timeout or 0) > (self.max_request_timeout or math.inf):
            raise InvalidConfig(
                "request_timeout", "must not exceed --max-request-timeout"
            )
        _check_origins(self.allowed_origins)
        _check_hosts(self.allowed_host)
        _check_root_path(self.root_path or "")
        check_at_least("max_connections", self.max_connections, 1)
        name = "max_connections_per_address"
        check_at_least(name, self.max_connections_per_address, 1)
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
            raise InvalidConfig(
                "otlp_traces_endpoint",
                f"{endpoint!r} is not an http:// or https:// address",
            )
        check_seconds("write_timeout", self.write_timeout)
        parse_bytes("max_unread_memory", self.max_unread_memory)
        check_seconds("sse_keepalive", self.sse_keepalive, may_be_zero=True)
        check_seconds("drain_timeout", self.drain_timeout, may_be_zero=True)
        check_seconds("progress_timeout", self.progress_timeout)
        parse_bytes("max_responses_memory", self.max_responses_memory)
        check_seconds("resume_seconds", self.resume_seconds, may_be_zero=True)
        memory = parse_bytes("max_resume_memory", self.max_resume_memory)
        if self.resume_seconds and memory < STREAM_LOG_BYTES:
            raise InvalidConfig("max_resume_memory", "must be at least 256KiB")
        check_seconds("response_max_age", self.response_max_age, may_be_zero=True)
        check_at_least("max_background_responses", self.max_background_responses, 0)


def _check_origins(origins: tuple[str, ...]) -> None:
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise InvalidConfig(
                "allowed_origins",
                f"{origin!r} is not an origin such as https://chat.example, without a path",
            )


def _check_hosts(names: tuple[str, ...]) -> None:
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise InvalidConfig(
                "allowed_host",
                f"{name!r} is not a name such as llm.example, without a port, or *",
            )


def _check_root_path(path: str) -> None:
    if path and not _ROOT_PATH.fullmatch(path):
        raise InvalidConfig(
            "root_path",
            f"{path!r} is not a path such as /llm: it begins with a slash, and does not end "
            "with one",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """Processes of the server.

    Args:
      engine_process: Run the engine in a process of its own. Event loop and device then
        never wait for each other's turn in Python.
    """

    engine_process: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BindConfig:
    """Address, HTTP processes and log of `trioserve serve`. Others have their own.

    Args:
      host: Address to listen on; 0.0.0.0 for all.
      port: Port to listen on; 0 takes a free one and prints it.
      uds: Unix socket to listen on, in place of --host and --port.
      tls_certfile: Certificate of the server and those above it, as PEM; the server then
        speaks TLS. SIGHUP reads it again.
      tls_keyfile: Key of the certificate, as PEM, without a password.
      api_processes: HTTP processes, which serve HTTP on one port and share one engine. Each
        has its own renderer workers and its own bounds of memory and connections.
      log_level: Least severe level that is logged to stderr.
    """

    host: str = _HOST
    port: int = _PORT
    uds: FilePath | None = None
    tls_certfile: FilePath | None = None
    tls_keyfile: FilePath | None = None
    api_processes: int = 1
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        check_at_least("api_processes", self.api_processes, 1)
        if not 0 <= self.port <= 65535:
            raise InvalidConfig("port", f"must be between 0 and 65535, got {self.port}")
        if self.uds is not None and (self.host, self.port) != (_HOST, _PORT):
            raise InvalidConfig("uds", "is taken in place of --host and --port")
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            has_key = self.tls_keyfile is not None
            given, other = ("key", "cert") if has_key else ("cert", "key")
            raise InvalidConfig(f"tls_{given}file", f"needs --tls-{other}file, too")
