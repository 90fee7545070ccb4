"""Random tokens within a schema's masks make a value that the schema allows.

schemas.jsonl has schemas by keyword, and unsupported.jsonl the mistakes that are refused.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import jsonschema
from llguidance import LLMatcher, LLTokenizer
import numpy as np
import pytest

from trioserve.errors import InvalidParameter
from trioserve.grammar.compile import compile_structure
from trioserve.grammar.guide import Guide, count_words
from trioserve.types.structured import Grammar, StructuredOutput

# As in conftest.guidance.
IM_END, VOCAB_SIZE = 1, 520

OpenMatcher = Callable[[StructuredOutput], LLMatcher]

# A random model writes on and on. Behind this many tokens it wants to end.
NUM_FREE = 12
MAX_TOKENS = 250


def read_lines(name: str) -> list[Any]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


def make_form(schema: object) -> StructuredOutput:
    return StructuredOutput(kind="json", value=json.dumps(schema), param="guided_json")


class Writer:
    """A model with random logits.

    Args:
      temperature: 0 takes the best of the logits, 1 draws.
    """

    def __init__(self, guidance: LLTokenizer, temperature: float, seed: int) -> None:
        self._guidance = guidance
        self._temperature = temperature
        self._source = np.random.default_rng(seed)
        self._mask = np.zeros(count_words(VOCAB_SIZE), dtype=np.int32)
        # The same logits after every token, as of a model that repeats itself.
        self._logits = self._source.normal(size=VOCAB_SIZE)
        ends = [IM_END, *(guidance.tokenize_str(text)[0] for text in '"}],0e')]
        self._wish = np.zeros(VOCAB_SIZE)
        self._wish[ends] = 20.0, 9.0, 8.0, 8.0, 2.0, 1.0, 1.0

    def write(self, guide: Guide) -> str | None:
        """Return the answer; None if it does not end."""
        token_ids: list[int] = []
        for count in range(MAX_TOKENS):
            guide.write_mask(self._mask)
            bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[:VOCAB_SIZE])
            assert len(allowed), "a value can go on, or end"
            token_id = int(allowed[np.argmax(self._score(count)[allowed])])
            guide.read(token_id)
            if token_id == IM_END:
                return self._guidance.decode_bytes(token_ids).decode()
            token_ids.append(token_id)
        return None

    def _score(self, count: int) -> Any:
        scores = self._logits
        if self._temperature:
            scores = scores + self._source.gumbel(size=VOCAB_SIZE)
        return scores + self._wish * (count >= NUM_FREE)


@pytest.mark.parametrize(
    "schemas",
    [pytest.param(rest, id=keyword) for keyword, *rest in read_lines("schemas.jsonl")],
)
def test_answers_match_their_schema(
    open_matcher: OpenMatcher, guidance: LLTokenizer, schemas: list[Any]
) -> None:
    for schema in schemas:
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        matcher = open_matcher(make_form(schema))
        ended = 0
        for seed, temperature in enumerate((0.0, 1.0)):
            guide = Guide(matcher.deep_copy(), Grammar(text=""), [IM_END])
            answer = Writer(guidance, temperature, seed).write(guide)
            if answer is not None:
                validator.validate(json.loads(answer))
                ended += 1
        assert ended, f"an answer has ended: {schema}"


def test_what_is_not_supported_is_named_with_its_place() -> None:
    for path, keyword, schema in read_lines("unsupported.jsonl"):
        with pytest.raises(InvalidParameter) as caught:
            compile_structure(make_form(schema))
        assert caught.value.param == "guided_json"
        assert str(caught.value).startswith(f"guided_json: {path}: "), schema
        assert keyword in str(caught.value)
