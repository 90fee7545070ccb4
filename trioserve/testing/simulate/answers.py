"""Checks the reply of one request against the texts that the device writes for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import json
from typing import Any

from .client import Reply
from .device import make_key
from .history import History, RequestPlan
from .server import SimulatedModel

# A stream writes its last events within a second after its deadline.
_LAST_WORDS_SECONDS = 1.0

# Rounding of the deadline in the header, and of times.
_SLACK_SECONDS = 1e-3


class Wrong(Exception):
    """Raised when a reply is not as it must be."""


@dataclass(kw_only=True)
class _Choice:
    text: str = ""
    finish_reason: str | None = None


@dataclass(kw_only=True)
class _Answer:
    """The parts of a reply.

    Attributes:
      error: the status in an error, of the answer or of an event.
      is_done: a stream has ended with [DONE].
    """

    choices: dict[int, _Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: int | None = None
    is_done: bool = False


class AnswerChecks:
    """Checks the replies of one history.

    Args:
      cancelled: the ids of requests that a DELETE was for; None stands for all.
    """

    def __init__(
        self, model: SimulatedModel, history: History, cancelled: set[str | None]
    ) -> None:
        self._model = model
        self._history = history
        self._cancelled = cancelled

    def check(self, reply: Reply) -> None:
        """Raise Wrong if a reply is not one that its request can get.

        Raises:
          Wrong
        """
        answer = _read(reply)
        if answer.error is not None:
            _claim(
                answer.error in self._list_errors(reply.plan),
                f"the error {answer.error} has no cause",
            )
        for index, choice in answer.choices.items():
            self._check_choice(reply, index, choice)
        if reply.has_left:
            return
        self._check_end(reply, answer)
        self._check_time(reply)

    def _check_end(self, reply: Reply, answer: _Answer) -> None:
        plan = reply.plan
        if not reply.is_whole:
            _claim(self._may_be_cut(reply), "the answer has no end")
            return
        if answer.error is not None:
            return
        _claim(plan.fault not in ("refused", "raises"), "a broken plug-in was ignored")
        _claim(len(answer.choices) == plan.n, f"{len(answer.choices)} choices came")
        for choice in answer.choices.values():
            _claim(choice.finish_reason is not None, "a choice has not ended")
        _claim(answer.is_done or not plan.is_stream, "there is no [DONE]")
        if answer.usage is not None:
            self._check_usage(answer)

    def _check_usage(self, answer: _Answer) -> None:
        assert answer.usage is not None, "only called with one"
        reasons = {each.finish_reason for each in answer.choices.values()}
        if reasons != {"length"}:
            # The token of a stop string counts, but is not in the text.
            return
        written = sum(len(each.text) for each in answer.choices.values())
        counted = answer.usage["completion_tokens"]
        _claim(counted == written, f"{counted} tokens are counted, {written} came")

    def _check_choice(self, reply: Reply, index: int, choice: _Choice) -> None:
        plan, text = reply.plan, choice.text
        _claim(index < plan.n, f"there is a choice {index}")
        whole = self._write_text(plan, index)
        _claim(whole.startswith(text), f"choice {index} is {text!r}, not of {whole!r}")
        end = whole if plan.stop is None else whole.split(plan.stop)[0]
        _claim(end.startswith(text), f"choice {index} goes on behind its stop string")
        match choice.finish_reason:
            case "length":
                _claim(text == whole, "an answer has ended before its length")
            case "stop":
                _claim(text == end != whole, "an answer has stopped elsewhere")
            case "deadline":
                _claim(self._has_deadline(plan), "there was no deadline")
            case None:
                pass
            case other:
                raise Wrong(f"the finish reason is {other}")
        if plan.fault == "plugin" and plan.fails_at < len(end):
            if index == 0:
                _claim(len(text) <= plan.fails_at, "a broken sequence went on")

    def _check_time(self, reply: Reply) -> None:
        plan = reply.plan
        limits = [plan.timeout or self._history.limits.http.request_timeout]
        if limits[0] is None or reply.client.is_slow or plan.leaves is not None:
            return
        seconds = reply.ended_at - reply.sent_at
        # The first bytes of a request may wait in small buffers for the rest of its head.
        most = limits[0] + _LAST_WORDS_SECONDS + 0.01 * plan.pieces + _SLACK_SECONDS
        _claim(seconds <= most, f"it took {seconds:.3f} s, at most {most:.3f} are left")

    def _list_errors(self, plan: RequestPlan) -> set[int]:
        """Return the statuses of errors that a request may end with."""
        history, allowed = self._history, set[int]()
        if self._has_deadline(plan) or plan.max_queue_seconds is not None:
            # 503 says at once that other requests would make it late.
            allowed |= {503, 504}
        if self._is_cancelled(plan):
            allowed.add(499)
        if history.limits.fail_at_steps:
            allowed |= {500, 503}
        if history.drains_at is not None:
            allowed.add(503)
        if history.is_tight:
            allowed |= {429, 503}
            # More sequences than ever have room.
            allowed |= {400} if plan.n > 1 else set()
        if plan.fault == "refused" or plan.leaves == "half_close":
            # The body may have ended too early.
            allowed.add(400)
        if plan.fault in ("raises", "plugin"):
            allowed.add(500)
        return allowed

    def _may_be_cut(self, reply: Reply) -> bool:
        """Whether the server may close the connection within the answer."""
        history = self._history
        ends = history.drains_at is not None or bool(history.limits.fail_at_steps)
        refuses = history.limits.http.max_connections is not None
        is_late = reply.client.is_slow and (
            self._has_deadline(reply.plan) or self._is_cancelled(reply.plan)
        )
        return ends or refuses or is_late

    def _is_cancelled(self, plan: RequestPlan) -> bool:
        return bool(self._cancelled & {None, plan.id})

    def _has_deadline(self, plan: RequestPlan) -> bool:
        default = self._history.limits.http.request_timeout
        return plan.timeout is not None or default is not None

    def _write_text(self, plan: RequestPlan, index: int) -> str:
        key = find_key(self._model, plan, index)
        return self._model.texts.write(key, plan.max_tokens)


def find_key(model: SimulatedModel, plan: RequestPlan, index: int) -> int:
    """Return the key of the text of one sequence of a request."""
    text, adds = plan.text, True
    if plan.is_chat:
        text, adds = (
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
            False,
        )
    ids = model.tokenizer.encode(text, add_special_tokens=adds).ids
    return make_key(ids, plan.seed + index)


def _read(reply: Reply) -> _Answer:
    answer = _Answer()
    if reply.status is None:
        return answer
    if reply.status == 200 and reply.plan.is_stream:
        _read_events(bytes(reply.body), answer)
    elif reply.is_whole:
        data = json.loads(reply.body)
        if reply.status == 200:
            _read_whole(data, answer)
        else:
            answer.error = data["error"]["code"]
            _claim(answer.error == reply.status, "the status is another one")
    return answer


def _read_whole(data: Any, answer: _Answer) -> None:
    for choice in data["choices"]:
        message = choice.get("message")
        text = choice["text"] if message is None else message["content"]
        answer.choices[choice["index"]] = _Choice(
            text=text or "", finish_reason=choice["finish_reason"]
        )
    answer.usage = data["usage"]


def _read_events(body: bytes, answer: _Answer) -> None:
    for event in _split_events(body):
        _claim(not answer.is_done, "an event comes behind [DONE]")
        _claim(
            answer.error is None or event == b"[DONE]", "an event comes behind an error"
        )
        if event == b"[DONE]":
            answer.is_done = True
            continue
        data = json.loads(event)
        if "error" in data:
            answer.error = data["error"]["code"]
            continue
        for choice in data["choices"]:
            _read_part(choice, answer)
        answer.usage = data.get("usage") or answer.usage


def _read_part(data: Any, answer: _Answer) -> None:
    choice = answer.choices.setdefault(data["index"], _Choice())
    _claim(choice.finish_reason is None, "text comes behind the end of a choice")
    delta = data.get("delta")
    text = data["text"] if delta is None else delta.get("content")
    choice.text += text or ""
    choice.finish_reason = data["finish_reason"]


def _split_events(body: bytes) -> Iterator[bytes]:
    # The last one may not be whole.
    for event in body.split(b"\n\n")[:-1]:
        # Comments, which keep proxies from closing a silent stream, are lines of their own.
        while event.startswith(b":"):
            event = event.partition(b"\n")[2]
        _claim(event.startswith(b"data: "), f"{event!r} is no event")
        yield event.removeprefix(b"data: ")


def _claim(is_true: bool, otherwise: str) -> None:
    if not is_true:
        raise Wrong(otherwise)
