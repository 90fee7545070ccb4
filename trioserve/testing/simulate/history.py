"""Random histories: what the clients of a server do, and what breaks, from one seed."""

from __future__ import annotations

from dataclasses import dataclass
import json
import random
from typing import Literal

from ...config import HttpConfig, RenderConfig
from ...types.plan import StepPlan
from .server import SimulatedLimits

Leave = Literal["close", "reset", "half_close", "stall"]

# Prompts begin with some of these, so that they share blocks.
_PREFIXES = (
    "The quick brown fox jumps over the lazy dog. ",
    "The quick brown fox sleeps. ",
    "Once upon a time ",
    "",
)

# The longest prompt has about 50 tokens, so the longest answer fits behind it.
_MAX_TOKENS = 30

Fault = Literal["plugin", "refused", "raises"]
_FAULTS: tuple[Fault, ...] = ("plugin", "refused", "raises")


@dataclass(frozen=True, kw_only=True)
class RequestPlan:
    """One request of a client.

    Args:
      number: unique in its history.
      waits: seconds after the answer before, or after the client's start.
      stop: a stop string, which the answer may contain.
      timeout: seconds, in the header; None for none.
      leaves: how the client leaves before it has the answer; None if it stays.
      leaves_after: seconds.
      pieces: the number of parts in which the request is sent, with pauses.
      fault: what breaks while it is answered: "plugin" in the device at some token,
        "refused" and "raises" when a plug-in reads its arguments.
      fails_at: the token that "plugin" breaks.
    """

    number: int
    waits: float
    is_chat: bool
    is_stream: bool
    reports_usage: bool
    text: str
    n: int
    max_tokens: int
    seed: int
    stop: str | None
    priority: int
    timeout: float | None
    max_queue_seconds: float | None
    leaves: Leave | None
    leaves_after: float
    pieces: int
    fault: Fault | None
    fails_at: int

    @property
    def id(self) -> str:
        return f"request-{self.number}"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def write_body(self) -> bytes:
        fields: dict[str, object] = {
            "n": self.n,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "stream": self.is_stream,
            "priority": self.priority,
        }
        if self.is_chat:
            fields["messages"] = [{"role": "user", "content": self.text}]
        else:
            fields["prompt"] = self.text
        if self.stop is not None:
            fields["stop"] = self.stop
        if self.is_stream and self.reports_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.max_queue_seconds is not None:
            fields["max_queue_seconds"] = self.max_queue_seconds
        if self.fault in ("refused", "raises"):
            fields["logits_processors"] = {"breaking": {"how": self.fault}}
        return json.dumps(fields).encode()


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """A client with one connection at a time.

    Args:
      read_size: the most bytes that it takes at once.
      read_pause: seconds between two reads.
      capacity: bytes that its connection takes in each direction.
    """

    starts_at: float
    requests: tuple[RequestPlan, ...]
    read_size: int
    read_pause: float
    capacity: int

    @property
    def is_slow(self) -> bool:
        return self.read_pause > 0


@dataclass(frozen=True, kw_only=True)
class CancelPlan:
    """A DELETE of one request, or of all."""

    at: float
    request_id: str | None


@dataclass(frozen=True, kw_only=True)
class History:
    """A whole run of a server.

    Args:
      is_tight: the limits are so small that requests are refused.
      drains_at: when the server is told to end; None for when all clients have ended.
    """

    seed: int
    limits: SimulatedLimits
    clients: tuple[ClientPlan, ...]
    cancels: tuple[CancelPlan, ...]
    is_tight: bool
    drains_at: float | None

    @property
    def requests(self) -> list[RequestPlan]:
        return [each for client in self.clients for each in client.requests]


def make_history(seed: int) -> History:
    """Make the history of a seed."""
    return _Writer(seed).write()


class _Writer:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._num_requests = 0
        # Some histories are calm, so that their answers are whole.
        self._is_calm = self._chance(0.2)

    def write(self) -> History:
        draw = self._random
        num_clients = draw.randint(1, 6)
        is_tight = self._chance(0.25)
        clients = tuple(self._write_client() for _ in range(num_clients))
        return History(
            seed=self._seed,
            limits=self._write_limits(is_tight),
            clients=clients,
            cancels=() if self._is_calm else self._write_cancels(),
            is_tight=is_tight,
            drains_at=draw.uniform(0.0, 2.0) if self._mishap(0.1) else None,
        )

    def _write_limits(self, is_tight: bool) -> SimulatedLimits:
        draw = self._random
        fails = self._mishap(0.1)
        slow = {draw.randint(0, 40): draw.uniform(0.5, 5.0) for _ in range(2)}
        if not self._mishap(0.3):
            slow = {}
        token_seconds = draw.choice([0.0, 0.0005])
        step_seconds = draw.choice([0.005, 0.02, 0.1])

        def count_seconds(plan: StepPlan) -> float:
            usual = step_seconds + token_seconds * plan.num_tokens
            return slow.get(plan.step_id, usual)

        return SimulatedLimits(
            http=HttpConfig(
                request_timeout=draw.choice([None, None, 1.0]),
                drain_timeout=draw.choice([0.5, 5.0]),
                refuse_late=self._chance(0.5),
                sse_keepalive=draw.choice([1.0, 15.0, 15.0, 15.0]),
                max_connections=2 if is_tight and self._chance(0.5) else None,
            ),
            render=RenderConfig(
                renderer_num_workers=draw.choice([1, 2, 4]),
                renderer_max_requests=2 if is_tight else 1000,
            ),
            # The longest sequence must fit alone: 128 tokens.
            num_blocks=draw.choice([32, 40, 128]),
            max_num_seqs=draw.choice([1, 2, 4, 8]),
            max_num_batched_tokens=draw.choice([8, 16, 64]),
            max_num_waiting=draw.choice([0, 2]) if is_tight else 1000,
            depth=draw.choice([1, 2, 2]),
            fail_at_steps=(draw.randint(0, 30), draw.randint(0, 30)) if fails else (),
            restarts=self._chance(0.5),
            seconds_of=count_seconds,
        )

    def _write_client(self) -> ClientPlan:
        draw = self._random
        is_slow = self._mishap(0.15)
        return ClientPlan(
            starts_at=draw.choice([0.0, draw.uniform(0.0, 1.0)]),
            requests=tuple(self._write_request() for _ in range(draw.randint(1, 2))),
            read_size=draw.choice([50, 500]) if is_slow else 65_536,
            read_pause=draw.choice([0.05, 0.5]) if is_slow else 0.0,
            capacity=draw.choice([64, 700, 65_536]),
        )

    def _write_request(self) -> RequestPlan:
        draw = self._random
        self._num_requests += 1
        number = self._num_requests
        fault = draw.choice(_FAULTS)
        return RequestPlan(
            number=number,
            waits=draw.choice(
                [0.0, draw.uniform(0.0, 1.0), draw.uniform(0.0, 0.1), 6.0]
            ),
            is_chat=self._chance(0.5),
            is_stream=self._chance(0.6),
            reports_usage=self._chance(0.5),
            text=draw.choice(_PREFIXES) + "abc " * draw.randint(0, 5) + f"{number}",
            n=draw.choice([1, 1, 1, 2, 3]),
            max_tokens=draw.choice([1, 5, draw.randint(1, _MAX_TOKENS)]),
            # Room for n sequences between two requests.
            seed=1000 * self._seed + 10 * number,
            stop=draw.choice("0123456789abcdef") if self._chance(0.3) else None,
            priority=draw.choice([0, 0, 1, -1]),
            timeout=draw.uniform(0.01, 1.0) if self._mishap(0.25) else None,
            max_queue_seconds=draw.uniform(0.01, 0.5) if self._mishap(0.1) else None,
            leaves=(
                draw.choice(["close", "reset", "half_close", "stall"])
                if self._mishap(0.2)
                else None
            ),
            leaves_after=draw.choice([0.0, draw.uniform(0, 0.1), draw.uniform(0, 2.0)]),
            pieces=draw.choice([1, 1, 1, 2, 5]),
            fault=fault if self._mishap(0.08) else None,
            fails_at=draw.randint(0, 10),
        )

    def _write_cancels(self) -> tuple[CancelPlan, ...]:
        draw = self._random
        if not self._chance(0.25):
            return ()
        names = [f"request-{number + 1}" for number in range(self._num_requests)]
        return tuple(
            CancelPlan(
                at=draw.uniform(0.0, 1.5),
                request_id=draw.choice([None, *names]),
            )
            for _ in range(draw.randint(1, 3))
        )

    def _mishap(self, probability: float) -> bool:
        return self._chance(probability) and not self._is_calm

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability
