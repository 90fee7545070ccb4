"""The effects of a history on a request: errors, and answers that break off."""

from __future__ import annotations

from .history import History
from .plans import KeyPlan, RequestPlan
from .reading import claim
from .replies import Reply

# The server notices a lost connection at once, and rounding is less.
_SLACK_SECONDS = 0.01

# A stream writes its last events within a second after its deadline.
_LAST_WORDS_SECONDS = 1.0

# Of the deadline in the header, and of times.
_ROUNDING_SECONDS = 1e-3


class Causes:
    """The causes of one history, for requests of every kind."""

    def __init__(self, history: History) -> None:
        self._history = history

    def list_errors(self, reply: Reply) -> set[int]:
        """Return the statuses of errors with which an answer may end, but not 401 or 429."""
        history, plan, allowed = self._history, reply.plan, set[int]()
        if self.has_deadline(plan):
            # 503 says at once that other requests would make it late.
            allowed |= {503, 504}
        if self.is_cancelled(reply):
            allowed.add(499)
        if history.limits.fail_at_steps:
            allowed |= {500, 503}
        if history.drains_at is not None:
            allowed.add(503)
        if history.is_tight:
            allowed.add(503)
        if plan.leaves == "half_close":
            # The body may have ended too early.
            allowed.add(400)
        return allowed

    def list_resume_errors(self, reply: Reply) -> set[int]:
        """Return the statuses with which a stream may not be taken up again."""
        history, allowed = self._history, set[int]()
        limit = history.limits.http.resume_seconds - _SLACK_SECONDS
        if reply.client.is_slow or any(
            each.pause > limit for each in reply.plan.breaks
        ):
            # The time of a stream that was sent to its end begins before a slow client has
            # lost the connection.
            allowed.add(404)
        if history.is_tight:
            # Of many streams, the oldest without a connection ends.
            allowed.add(404)
        if history.is_tight or history.limits.fail_at_steps:
            allowed.add(503)
        if history.drains_at is not None:
            allowed |= {404, 503}
        return allowed

    def may_be_cut(self, reply: Reply) -> bool:
        """Return whether the server may close the connection within the answer."""
        history, client = self._history, reply.client
        ends = history.drains_at is not None or bool(history.limits.fail_at_steps)
        refuses = history.limits.http.max_connections is not None
        # A client must take each write within a timeout: a whole answer, or the events of a
        # stream that have gathered. Over HTTP/2, a window must not stay shut for long.
        timeout = history.limits.http.write_timeout
        is_late = client.is_slow and (
            reply.ended_at - reply.sent_at >= timeout
            or client.is_http2
            or self.has_deadline(reply.plan)
            or self.is_cancelled(reply)
        )
        return ends or refuses or is_late

    def check_time(self, reply: Reply) -> None:
        """Check that an answer has come in time, if there is a deadline.

        Raises:
          Wrong
        """
        plan = reply.plan
        limit = self.find_deadline(plan)
        if limit is None or reply.client.is_slow or plan.leaves or plan.breaks:
            return
        seconds = reply.ended_at - reply.sent_at
        # The first bytes of a request may wait in small buffers for the rest of its head.
        most = limit + _LAST_WORDS_SECONDS + 0.01 * plan.pieces + _ROUNDING_SECONDS
        claim(seconds <= most, f"it took {seconds:.3f} s, at most {most:.3f} are left")

    def is_cancelled(self, reply: Reply) -> bool:
        """Return whether somebody who may do so has cancelled the request."""
        return any(
            each.method == "DELETE"
            and each.request_id in (None, reply.plan.id)
            and may_see(each.key, reply.client.key)
            for each in self._history.controls
        )

    def has_deadline(self, plan: RequestPlan) -> bool:
        return self.find_deadline(plan) is not None

    def find_deadline(self, plan: RequestPlan) -> float | None:
        """Return the seconds that a request may take."""
        return plan.timeout or self._history.limits.http.request_timeout


def may_see(asker: KeyPlan | None, owner: KeyPlan | None) -> bool:
    """Return whether a key may see and cancel the requests of another; all may without keys."""
    if asker is None:
        return True
    if asker.key is None:
        return False
    return asker.key.is_admin or asker == owner
