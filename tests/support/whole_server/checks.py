"""All checks of the replies of a history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVarTuple, cast

from trioserve.http.keys.key_use import KeyUses

from .answers import AnswerChecks, find_prompt
from .history import History
from .key_checks import KeyChecks
from .model import SimulatedModel
from .plans import ControlPlan, RequestPlan
from .pooling_requests import EmbeddingPlan
from .reading import Wrong, read_answer
from .replies import Reply
from .text_requests import TextPlan
from .vectors import VectorChecks, tokenize

Ts = TypeVarTuple("Ts")

# A control, and the status and the JSON of its answer.
Controlled: TypeAlias = tuple[ControlPlan, int | None, Any]


def check_history(
    model: SimulatedModel,
    history: History,
    replies: Sequence[Reply],
    controls: Sequence[Controlled],
    uses: KeyUses,
) -> list[str]:
    """Check the replies of a history; returns the problems.

    Args:
      uses: the server's counts for each key.
    """
    keys = KeyChecks(
        history, replies, _VectorTokens(model) if history.pools else _TextTokens(model)
    )
    checks = VectorChecks if history.pools else AnswerChecks
    answers = checks(model, history, keys)
    problems: list[str] = []
    for reply in replies:
        _collect(problems, reply.plan.id, answers.check, reply)
        _collect(problems, reply.plan.id, keys.check, reply)
    for plan, status, listed in controls:
        name = f"{plan.method} {plan.request_id}"
        _collect(problems, name, keys.check_control, plan, status, listed)
    _collect(problems, "keys", keys.check_uses, uses)
    return problems


class _TextTokens:
    def __init__(self, model: SimulatedModel) -> None:
        self._model = model

    def count_most(self, plan: RequestPlan) -> int:
        text = cast(TextPlan, plan)
        return len(find_prompt(self._model, text)) + text.n * text.max_tokens

    def count_least(self, reply: Reply) -> int:
        plan = cast(TextPlan, reply.plan)
        answer = read_answer(reply, is_stream=plan.is_stream)
        # Each token is a letter.
        num_tokens = sum(len(choice.text) for choice in answer.choices.values())
        if plan.form is not None:
            # Its tokens have several letters.
            usage = answer.usage
            num_tokens = 0 if usage is None else int(usage["completion_tokens"])
        return num_tokens and num_tokens + len(find_prompt(self._model, plan))


class _VectorTokens:
    def __init__(self, model: SimulatedModel) -> None:
        self._model = model

    def count_most(self, plan: RequestPlan) -> int:
        texts = cast(EmbeddingPlan, plan).read_texts
        return sum(len(tokenize(self._model, text)) for text in texts)

    def count_least(self, reply: Reply) -> int:
        is_counted = reply.is_whole and reply.status == 200
        return self.count_most(reply.plan) if is_counted else 0


def _collect(
    problems: list[str], name: str, check: Callable[[*Ts], None], *args: *Ts
) -> None:
    try:
        check(*args)
    except Wrong as wrong:
        problems.append(f"{name}: {wrong}")
