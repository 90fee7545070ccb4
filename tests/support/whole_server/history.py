"""Random histories: the acts of a server's clients, and the faults, from one seed."""

from __future__ import annotations

from dataclasses import dataclass

from trioserve.config import HttpConfig, RenderConfig
from trioserve.types.plan import StepPlan

from .dice import Dice
from .keys import draw_controls, draw_key, draw_keys
from .model import SimulatedLimits
from .plans import ClientPlan, ControlPlan, KeyPlan, RequestPlan
from .pooling_requests import draw_embedding
from .text_requests import draw_text_request

# The server of so many histories embeds texts.
_POOLS_EVERY = 5


@dataclass(frozen=True, kw_only=True)
class History:
    """A whole run of a server.

    Args:
      pools: the server embeds texts, and does not generate.
      keys: empty if the server has none.
      is_tight: the limits are so small that requests are refused.
      drains_at: when the server is told to end; None for when all clients have ended.
    """

    seed: int
    pools: bool
    limits: SimulatedLimits
    keys: tuple[KeyPlan, ...]
    clients: tuple[ClientPlan, ...]
    controls: tuple[ControlPlan, ...]
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
        self._pools = seed % _POOLS_EVERY == _POOLS_EVERY - 1
        self._dice = Dice(seed)
        self._keys = draw_keys(self._dice)
        self._num_requests = 0

    def write(self) -> History:
        dice = self._dice
        is_tight = dice.chance(0.25)
        limits = self._draw_limits(is_tight)
        num_clients = dice.random.randint(1, 6)
        clients = tuple(self._draw_client(limits) for _ in range(num_clients))
        return History(
            seed=self._seed,
            pools=self._pools,
            limits=limits,
            keys=self._keys,
            clients=clients,
            controls=draw_controls(dice, self._keys, self._num_requests),
            is_tight=is_tight,
            drains_at=dice.random.uniform(0.0, 2.0) if dice.mishap(0.1) else None,
        )

    def _draw_limits(self, is_tight: bool) -> SimulatedLimits:
        dice, draw = self._dice, self._dice.random
        fails = dice.mishap(0.1)
        slow = {draw.randint(0, 40): draw.uniform(0.5, 5.0) for _ in range(2)}
        if not dice.mishap(0.3):
            slow = {}
        token_seconds = draw.choice([0.0, 0.0005])
        step_seconds = draw.choice([0.005, 0.02, 0.1])

        def count_seconds(plan: StepPlan) -> float:
            usual = step_seconds + token_seconds * plan.num_tokens
            return slow.get(plan.step_id, usual)

        return SimulatedLimits(
            http=self._draw_http(is_tight),
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
            restarts=dice.chance(0.5),
            seconds_of=count_seconds,
        )

    def _draw_http(self, is_tight: bool) -> HttpConfig:
        dice, draw = self._dice, self._dice.random
        resume_seconds = draw.choice([0.0, 0.0, 1.0, 5.0])
        return HttpConfig(
            request_timeout=draw.choice([None, None, 1.0]),
            drain_timeout=draw.choice([0.5, 5.0]),
            refuse_late=dice.chance(0.5),
            sse_keepalive=draw.choice([1.0, 15.0, 15.0, 15.0]),
            max_connections=2 if is_tight and dice.chance(0.5) else None,
            enable_h2c=dice.chance(0.5),
            resume_seconds=resume_seconds,
            # Of two streams.
            max_resume_memory="512KiB" if is_tight and resume_seconds else "64MiB",
        )

    def _draw_client(self, limits: SimulatedLimits) -> ClientPlan:
        dice, draw = self._dice, self._dice.random
        is_slow = dice.mishap(0.15)
        is_http2 = limits.http.enable_h2c and dice.chance(0.6)
        num_requests = draw.randint(1, 4 if is_http2 else 2)
        return ClientPlan(
            starts_at=draw.choice([0.0, draw.uniform(0.0, 1.0)]),
            requests=tuple(
                self._draw_request(limits, is_http2) for _ in range(num_requests)
            ),
            key=draw_key(dice, self._keys),
            is_http2=is_http2,
            window=draw.choice([100, 2000, 65_535]),
            read_size=draw.choice([50, 500]) if is_slow else 65_536,
            read_pause=draw.choice([0.05, 0.5]) if is_slow else 0.0,
            capacity=draw.choice([64, 700, 65_536]),
        )

    def _draw_request(self, limits: SimulatedLimits, is_http2: bool) -> RequestPlan:
        self._num_requests += 1
        if self._pools:
            return draw_embedding(self._dice, self._num_requests, is_http2=is_http2)
        return draw_text_request(
            self._dice,
            self._num_requests,
            seed=self._seed,
            is_http2=is_http2,
            resume_seconds=limits.http.resume_seconds,
        )
