"""Checks the answers to requests for vectors."""

from __future__ import annotations

import json
import math
from typing import cast

from trioserve.testing.fake_device import fake_vector

from .model import SimulatedModel
from .pooling_requests import EmbeddingPlan
from .reading import claim, read_error
from .replies import Reply
from .reply_checks import ReplyChecks

# Of float32.
_ROUNDING = 1e-6


class VectorChecks(ReplyChecks):
    """Checks the replies of one history."""

    def check(self, reply: Reply) -> None:
        claim(not reply.is_held, "it goes on without its client")
        if not reply.is_whole:
            is_cut = not reply.has_left
            claim(not is_cut or self._causes.may_be_cut(reply), "the answer has no end")
        elif reply.status == 200:
            self._check_vectors(reply)
        else:
            self._check_error(reply, read_error(reply))
        if not reply.has_left:
            self._causes.check_time(reply)

    def _check_vectors(self, reply: Reply) -> None:
        plan = cast(EmbeddingPlan, reply.plan)
        claim(not plan.is_too_long, "a text was longer than the model reads")
        data = json.loads(reply.body)
        texts = [tokenize(self._model, text) for text in plan.read_texts]
        claim(
            [entry["index"] for entry in data["data"]] == list(range(len(texts))),
            "vectors are missing, or have another order",
        )
        for entry, token_ids in zip(data["data"], texts):
            vector = entry["embedding"]
            whole = fake_vector(token_ids, len(vector))
            distance = math.dist(vector, whole)
            claim(distance < _ROUNDING, f"vector {entry['index']} is of another text")
        counted = data["usage"]["prompt_tokens"]
        num_tokens = sum(map(len, texts))
        claim(counted == num_tokens, f"{counted} tokens are counted of {num_tokens}")

    def _list_errors(self, reply: Reply) -> set[int]:
        plan, limits = cast(EmbeddingPlan, reply.plan), self._history.limits
        allowed = super()._list_errors(reply)
        if plan.is_too_long:
            allowed.add(400)
        if len(plan.texts) > limits.max_num_seqs + limits.max_num_waiting:
            allowed.add(400)
        return allowed


def tokenize(model: SimulatedModel, text: str) -> list[int]:
    """Return the tokens that the device reads."""
    ids: list[int] = model.tokenizer.encode(text).ids
    return ids
