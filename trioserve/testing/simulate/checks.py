"""All checks of the replies of a history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVarTuple, cast

from ...http.key_use import KeyUses
from .answers import AnswerChecks, find_prompt
from .history import History
from .key_checks import KeyChecks
from .plans import ControlPlan, RequestPlan
from .reading import Wrong, read_answer
from .replies import Reply
from .server import SimulatedModel
from .text_requests import TextPlan

Ts = TypeVarTuple("Ts")

# A control, and the status and the JSON of its answer.
Controlled: TypeAlias = tuple[ControlPlan, int | None, Any]


class TextChecks:
    """Checks a history of a server that generates."""

    def __init__(
        self, model: SimulatedModel, history: History, replies: Sequence[Reply]
    ) -> None:
        self._model = model
        self._replies = replies
        self._keys = KeyChecks(
            history,
            replies,
            count_prompt=self._count_prompt,
            count_most=_count_most,
            count_answer=_count_answer,
        )
        self._answers = AnswerChecks(model, history, self._keys)

    def check(self, controls: Sequence[Controlled], uses: KeyUses) -> list[str]:
        """Return what is wrong."""
        problems: list[str] = []
        for reply in self._replies:
            _collect(problems, reply.plan.id, self._answers.check, reply)
            _collect(problems, reply.plan.id, self._keys.check, reply)
        for plan, status, listed in controls:
            name = f"{plan.method} {plan.request_id}"
            check = self._keys.check_control
            _collect(problems, name, check, plan, status, listed)
        _collect(problems, "keys", self._keys.check_uses, uses)
        return problems

    def _count_prompt(self, plan: RequestPlan) -> int:
        return len(find_prompt(self._model, cast(TextPlan, plan)))


def _count_most(plan: RequestPlan) -> int:
    text = cast(TextPlan, plan)
    return text.n * text.max_tokens


def _count_answer(reply: Reply) -> int:
    plan = cast(TextPlan, reply.plan)
    answer = read_answer(reply, is_stream=plan.is_stream)
    # Each token is a letter.
    return sum(len(choice.text) for choice in answer.choices.values())


def _collect(
    problems: list[str], name: str, check: Callable[[*Ts], None], *args: *Ts
) -> None:
    try:
        check(*args)
    except Wrong as wrong:
        problems.append(f"{name}: {wrong}")
