"""Checks the answers to requests for text against the texts that the device writes."""

from __future__ import annotations

from typing import cast

from .device import make_key
from .model import SimulatedModel
from .reading import Answer, Choice, Wrong, claim, read_answer
from .replies import Reply
from .reply_checks import ReplyChecks
from .text_requests import TextPlan


class AnswerChecks(ReplyChecks):
    """Checks the replies of one history."""

    def check(self, reply: Reply) -> None:
        plan = cast(TextPlan, reply.plan)
        is_resumable = self._history.limits.http.resume_seconds > 0
        claim(is_resumable or not reply.is_held, "it goes on without its client")
        if reply.resume_error is not None:
            self._check_resume_error(reply)
        answer = read_answer(reply, is_stream=plan.is_stream)
        if answer.error is not None:
            self._check_error(reply, answer.error)
        for index, choice in answer.choices.items():
            self._check_choice(reply, index, choice)
        if reply.has_left or reply.resume_error is not None:
            return
        self._check_end(reply, answer)
        self._causes.check_time(reply)

    def _check_resume_error(self, reply: Reply) -> None:
        error = reply.resume_error
        if reply.is_whole:
            claim(
                error in self._causes.list_resume_errors(reply),
                f"the error {error} behind a break has no cause",
            )

    def _check_end(self, reply: Reply, answer: Answer) -> None:
        plan = cast(TextPlan, reply.plan)
        if not reply.is_whole:
            claim(self._causes.may_be_cut(reply), "the answer has no end")
            return
        if answer.error is not None:
            return
        claim(plan.fault not in ("refused", "raises"), "a broken plug-in was ignored")
        claim(len(answer.choices) == plan.n, f"{len(answer.choices)} choices came")
        for choice in answer.choices.values():
            claim(choice.finish_reason is not None, "a choice has not ended")
        claim(answer.is_done or not plan.is_stream, "there is no [DONE]")
        if answer.usage is not None:
            self._check_usage(plan, answer)

    def _check_usage(self, plan: TextPlan, answer: Answer) -> None:
        assert answer.usage is not None, "only called with one"
        reasons = {each.finish_reason for each in answer.choices.values()}
        if reasons != {"length"}:
            # The token of a stop string counts, but is not in the text.
            return
        counted = answer.usage["completion_tokens"]
        most = plan.n * plan.max_tokens
        claim(counted == most, f"{counted} tokens are counted, {most} came")

    def _check_choice(self, reply: Reply, index: int, choice: Choice) -> None:
        plan, text = cast(TextPlan, reply.plan), choice.text
        claim(index < plan.n, f"there is a choice {index}")
        key = find_key(self._model, plan, index)
        whole = self._model.texts.write(key, plan.max_tokens)
        claim(whole.startswith(text), f"choice {index} is {text!r}, not of {whole!r}")
        end = whole if plan.stop is None else whole.split(plan.stop)[0]
        claim(end.startswith(text), f"choice {index} goes on behind its stop string")
        match choice.finish_reason:
            case "length":
                claim(text == whole, "an answer has ended before its length")
            case "stop" if plan.form is not None:
                claim(text == whole, "an answer has ended before its form")
                claim(plan.form.matches(text), f"{text!r} has another form")
                guided = self._model.texts.find_guided(key)
                has_end = guided is not None and guided.ends_within(plan.max_tokens)
                claim(has_end, "an answer has stopped before its end")
            case "stop":
                claim(text == end != whole, "an answer has stopped elsewhere")
            case "deadline":
                claim(self._causes.has_deadline(plan), "there was no deadline")
            case None:
                pass
            case other:
                raise Wrong(f"the finish reason is {other}")
        if plan.fault == "plugin" and plan.fails_at < len(end):
            if index == 0:
                claim(len(text) <= plan.fails_at, "a broken sequence went on")

    def _list_errors(self, reply: Reply) -> set[int]:
        plan = cast(TextPlan, reply.plan)
        allowed = super()._list_errors(reply)
        if plan.max_queue_seconds is not None:
            allowed |= {503, 504}
        if self._history.is_tight and plan.n > 1:
            # More sequences than ever have room.
            allowed.add(400)
        if plan.fault == "refused":
            allowed.add(400)
        if plan.fault in ("raises", "plugin"):
            allowed.add(500)
        return allowed


def find_key(model: SimulatedModel, plan: TextPlan, index: int) -> int:
    """Return the key of the text of one sequence of a request."""
    return make_key(find_prompt(model, plan), plan.seed + index)


def find_prompt(model: SimulatedModel, plan: TextPlan) -> list[int]:
    """Return the tokens of the prompt of a request."""
    text, adds = plan.text, True
    if plan.is_chat:
        text, adds = (
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
            False,
        )
    ids: list[int] = model.tokenizer.encode(text, add_special_tokens=adds).ids
    return ids
