"""Checks that keys are told apart, and that their limits hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trioserve.http.keys.key_use import KeyUses

from .history import History
from .plans import ControlPlan, RequestPlan
from .reading import Wrong, claim
from .replies import Reply

# A request may hold its place for so long when its client has left: a writer that the
# client has stalled, or a stream that may be taken up again.
_LINGER_SECONDS = 60.0

# Between the last byte of an answer and the end of its request.
_MOMENT_SECONDS = 0.01


class TokenCounts(Protocol):
    """The tokens of requests, as far as they are known."""

    def count_most(self, plan: RequestPlan) -> int:
        """Return the most tokens that the server may count."""

    def count_least(self, reply: Reply) -> int:
        """Return the fewest tokens that the server has counted when the reply had come."""


class KeyChecks:
    """Checks the replies of one history.

    Args:
      replies: all of them.
    """

    def __init__(
        self, history: History, replies: Sequence[Reply], tokens: TokenCounts
    ) -> None:
        self._history = history
        self._replies = replies
        self._tokens = tokens
        self._owners = {
            request.id: client.key
            for client in history.clients
            for request in client.requests
        }

    def list_errors(self, reply: Reply) -> set[int]:
        """Return the statuses with which the key of a request may be refused."""
        plan = reply.client.key
        if plan is None:
            return set()
        if plan.key is None:
            return {401}
        is_due = self._may_be_crowded(reply) or self._may_be_used_up(reply)
        return {429} if is_due else set()

    def check(self, reply: Reply) -> None:
        """Check that a reply was not given beyond the limits of its key.

        Raises:
          Wrong
        """
        plan = reply.client.key
        if plan is None or reply.status != 200:
            return
        claim(plan.key is not None, "a stranger got an answer")
        assert plan.key is not None, "just claimed"
        if (limit := plan.key.max_requests) is not None:
            num_beside = self._count_beside(reply)
            claim(num_beside < limit, f"{num_beside} others of its key were answered")
        if (per_minute := plan.key.tokens_per_minute) is not None:
            least = sum(
                self._tokens.count_least(each)
                for each in self._list_same(reply)
                if each.ended_at < reply.sent_at
            )
            # At first, there are the tokens of a minute.
            most = per_minute * (1 + reply.parts[0].began_at / 60)
            claim(least < most, f"{least} tokens were used before it, of {most:.1f}")

    def check_control(self, plan: ControlPlan, status: int | None, listed: Any) -> None:
        """Check the requests that a key has seen or cancelled.

        Raises:
          Wrong
        """
        is_stranger = plan.key is not None and plan.key.key is None
        claim(status != 200 or not is_stranger, f"a stranger got {status}")
        if status == 200:
            for each in listed["data"]:
                self._check_listed(plan, each)
        elif status is not None:
            claim(
                status in self._list_control_errors(plan),
                f"the error {status} of a control has no cause",
            )

    def check_uses(self, uses: KeyUses) -> None:
        """Check the tokens that the server has counted.

        Raises:
          Wrong
        """
        for use in uses.list_all():
            replies = [
                each
                for each in self._replies
                if each.client.key is not None and each.client.key.key == use.key
            ]
            least = sum(map(self._tokens.count_least, replies))
            most = sum(self._tokens.count_most(each.plan) for each in replies)
            if not least <= use.num_tokens <= most:
                raise Wrong(
                    f"{use.num_tokens} tokens of {use.key.name} are counted, "
                    f"of {least} to {most}"
                )

    def _check_listed(self, plan: ControlPlan, card: Any) -> None:
        request_id, name = card["id"], card["key"]
        if plan.key is not None and plan.key.key is not None:
            is_visible = plan.key.key.is_admin or plan.key.key.name == name
            claim(is_visible, f"{request_id} of {name} was shown to another key")
        # Controls have other ids.
        if (owner := self._owners.get(request_id)) is not None:
            right = None if owner.key is None else owner.key.name
            claim(name == right, f"{request_id} of {right} has the key {name}")

    def _list_control_errors(self, plan: ControlPlan) -> set[int]:
        history, errors = self._history, set[int]()
        if plan.key is not None and plan.key.key is None:
            errors.add(401)
        elif plan.request_id is not None:
            errors.add(404)
        if history.limits.http.request_timeout is not None:
            errors |= {504}
        if history.is_tight or history.drains_at is not None:
            errors.add(503)
        if any(each.method == "DELETE" for each in history.controls):
            # One control may cancel another.
            errors.add(499)
        return errors

    def _may_be_crowded(self, reply: Reply) -> bool:
        """Return whether other requests may have taken all places of the key."""
        assert reply.client.key is not None and reply.client.key.key is not None
        limit = reply.client.key.key.max_requests
        num_others = sum(
            each.sent_at <= reply.ended_at and _find_release(each) >= reply.sent_at
            for each in self._list_same(reply)
        )
        return limit is not None and num_others >= limit

    def _may_be_used_up(self, reply: Reply) -> bool:
        """Return whether other requests may have used all tokens of the key."""
        assert reply.client.key is not None and reply.client.key.key is not None
        limit = reply.client.key.key.tokens_per_minute
        most = sum(
            self._tokens.count_most(each.plan)
            for each in self._list_same(reply)
            if each.sent_at <= reply.ended_at
        )
        return limit is not None and most >= limit

    def _count_beside(self, reply: Reply) -> int:
        """Count the requests of the key that were answered when this one began to be."""
        at = reply.parts[0].began_at
        # What a slow client still reads may have been sent long ago.
        return sum(
            each.status == 200
            and not each.client.is_slow
            and each.parts[0].began_at < at < each.parts[0].ended_at
            for each in self._list_same(reply)
        )

    def _list_same(self, reply: Reply) -> list[Reply]:
        """Return the other replies of the key."""
        return [
            each
            for each in self._replies
            if each is not reply and each.client.key == reply.client.key
        ]


def _find_release(reply: Reply) -> float:
    """Return when the server holds nothing of a request any more."""
    is_sure = reply.is_whole and not reply.plan.breaks and reply.plan.leaves is None
    return reply.ended_at + (_MOMENT_SECONDS if is_sure else _LINGER_SECONDS)
