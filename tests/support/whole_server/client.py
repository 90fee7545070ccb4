"""A client of the simulated server: it sends its requests and notes all that comes back."""

from __future__ import annotations

import json
from typing import Any

import trio

from .exchange import Connection, Exchange, Request
from .http1 import Http1Connection
from .http2 import Http2Connection
from .plans import Break, ClientPlan, ControlPlan, KeyPlan, Leave, RequestPlan
from .replies import Part, Reply
from .server import SimulatedServer

# Longer than a call of a renderer worker, which goes on without its client.
_RENDER_SECONDS = 0.5


class Client:
    """Sends the requests of a plan, and notes the replies.

    Over HTTP/1, a request whose client leaves, and a request behind an answer that closes,
    begin a new connection.
    """

    def __init__(self, server: SimulatedServer, plan: ClientPlan) -> None:
        self._server = server
        self._plan = plan
        connect = Http2Connection if plan.is_http2 else Http1Connection
        self._connection: Connection = connect(server, plan)
        self.replies: list[Reply] = []

    async def run(self) -> None:
        await trio.sleep_until(self._plan.starts_at)
        if self._plan.is_http2:
            async with trio.open_nursery() as nursery:
                for request in self._plan.requests:
                    nursery.start_soon(self._ask, request)
        else:
            for request in self._plan.requests:
                await self._ask(request)
        self._connection.drop()

    async def _ask(self, plan: RequestPlan) -> None:
        await trio.sleep(plan.waits)
        reply = Reply(plan=plan, client=self._plan)
        request = _write_request(plan, self._plan.key)
        for each in plan.breaks:
            if not await self._lose(reply, request, each):
                return
            if (last := reply.last_event_id) is None:
                # The client has nothing to go on with.
                return
            await trio.sleep(each.pause)
            request = _write_resumption(plan, self._plan.key, last)
        await self._exchange(reply, request, plan.leaves, plan.leaves_after)
        await self._look(reply)

    async def _look(self, reply: Reply) -> None:
        """Look whether the server goes on with a request whose client has left."""
        # While a slow client does not take what the server writes, the server reads no
        # frame of HTTP/2 that would end the request. Nor does it end one while it writes to
        # a full connection of HTTP/2, which nobody reads when its last request is given up.
        is_full = self._plan.is_http2 and self._plan.capacity < 100
        is_fast = reply.has_left and not self._plan.is_slow and not is_full
        if is_fast and reply.plan.leaves in ("close", "reset", "goaway"):
            await trio.sleep(_RENDER_SECONDS)
            live = self._server.state.live
            reply.is_held = reply.plan.id in {each.id for each in live}

    async def _lose(self, reply: Reply, request: Request, plan: Break) -> bool:
        """Send a request, and lose its connection; False if the answer was faster."""
        part = await self._exchange(reply, request, plan.how, plan.after)
        return part.is_given_up and part.status == 200

    async def _exchange(
        self, reply: Reply, request: Request, leaves: Leave | None, after: float
    ) -> Part:
        part = Part(sent_at=trio.current_time())
        if not reply.parts:
            self.replies.append(reply)
        reply.parts.append(part)
        exchange = self._connection.open(request, part)
        async with trio.open_nursery() as nursery:
            if leaves is not None:
                nursery.start_soon(
                    _leave, exchange, part, leaves, after, nursery.cancel_scope
                )
            await exchange.run()
            nursery.cancel_scope.cancel()
        if not part.is_given_up:
            part.ended_at = trio.current_time()
        return part


async def _leave(
    exchange: Exchange, part: Part, how: Leave, after: float, running: trio.CancelScope
) -> None:
    await trio.sleep(after)
    part.give_up(trio.current_time())
    if how == "half_close":
        await exchange.half_close()
        return
    running.cancel()
    with trio.CancelScope(shield=True):
        await exchange.leave(how)


def _write_request(plan: RequestPlan, key: KeyPlan | None) -> Request:
    headers = [("Content-Type", "application/json"), ("X-Request-Id", plan.id)]
    if plan.timeout is not None:
        headers.append(("X-Request-Timeout", f"{plan.timeout:.6f}"))
    return Request(
        method="POST",
        path=plan.path,
        headers=(*headers, *_show_key(key)),
        body=plan.write_body(),
        pieces=plan.pieces,
    )


def _write_resumption(plan: RequestPlan, key: KeyPlan | None, event_id: str) -> Request:
    headers = (("Last-Event-ID", event_id), ("X-Request-Id", plan.id))
    return Request(method="POST", path=plan.path, headers=(*headers, *_show_key(key)))


def _show_key(key: KeyPlan | None) -> tuple[tuple[str, str], ...]:
    return () if key is None else (("Authorization", f"Bearer {key.secret}"),)


async def send_control(
    server: SimulatedServer, plan: ControlPlan
) -> tuple[int | None, Any]:
    """Ask for requests, or cancel them; returns the status and the JSON of the answer."""
    path = "/v1/requests" + ("" if plan.request_id is None else f"/{plan.request_id}")
    part = Part(sent_at=trio.current_time())
    client = ClientPlan(
        starts_at=0.0, requests=(), read_size=2**16, read_pause=0.0, capacity=2**16
    )
    connection = Http1Connection(server, client)
    request = Request(method=plan.method, path=path, headers=_show_key(plan.key))
    await connection.open(request, part).run()
    connection.drop()
    return part.status, json.loads(part.body) if part.is_whole else None
