"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

from msgspec import Meta

from ...errors import InvalidParameter, NotSupported
from ...types.sampling import SamplingParams
from ..decode.fields import Int64, TokenId
from ..shared.requests import GenerationRequest

# OpenAI's default.
DEFAULT_MAX_TOKENS: Final = 16

# Each prompt has a copy of the suffix. So many take no more than the prompts of a long body.
MAX_SUFFIX_CHARACTERS: Final = 2**24

# msgspec allows one array type in a union. So the type allows lists that mix strings, ids
# and lists of ids, and body.decode_prompt refuses them.
PromptItem = (
    Annotated[str, Meta(min_length=1)]
    | TokenId
    | Annotated[tuple[TokenId, ...], Meta(min_length=1)]
)
CompletionPrompt = (
    Annotated[str, Meta(min_length=1)]
    | Annotated[tuple[PromptItem, ...], Meta(min_length=1)]
)


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/completions.

    Args:
      suffix: the text behind the answer, for models that fill in the middle.
    """

    prompt: CompletionPrompt | None = None
    suffix: str | None = None
    prompt_embeds: tuple[memoryview, ...] | None = None
    echo: bool | None = None
    logprobs: Int64 | None = None
    best_of: Int64 | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_embeds:
            self._check_embeds()
        elif self.prompt is None:
            raise InvalidParameter(
                "prompt", "either prompt or prompt_embeds is required"
            )
        if self.suffix:
            self._check_suffix()
        if self.echo and self.logprob_token_ids:
            raise InvalidParameter("logprob_token_ids", "is not taken with echo")
        if self.best_of not in (None, 1 if self.n is None else self.n):
            raise NotSupported("best_of", "must be equal to n")

    def _check_embeds(self) -> None:
        """Refuse fields that need the token ids of the prompt: embeddings have none."""
        if self.echo:
            raise InvalidParameter("echo", "is not taken with prompt_embeds")
        if self.prompt_logprobs is not None:
            raise InvalidParameter("prompt_logprobs", "is not taken with prompt_embeds")

    def _check_suffix(self) -> None:
        """Refuse fields with which the gap would have no place."""
        for name in ("echo", "truncate_prompt_tokens", "prompt_embeds"):
            if getattr(self, name):
                raise InvalidParameter("suffix", f"is not taken with {name}")
        if self.id_lists:
            raise InvalidParameter("suffix", "needs prompts that are texts")
        if len(self.prompts) * len(self.suffix or "") > MAX_SUFFIX_CHARACTERS:
            raise InvalidParameter(
                "suffix",
                f"at most {MAX_SUFFIX_CHARACTERS} characters for all prompts together",
            )

    def take_sampling(self, values: dict[str, Any]) -> None:
        values.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
        values["logprobs"] = self.logprobs
        # Echoed tokens are reported with their log probabilities, too.
        if self.echo:
            values.setdefault("prompt_logprobs", self.logprobs)

    def check_sampling(self, sampling: SamplingParams) -> None:
        # The answer may be the prompt alone.
        if sampling.max_tokens == 0 and not self.echo:
            raise InvalidParameter(
                "max_tokens",
                "must be at least 1, got 0; 0 needs echo, to score a prompt",
            )

    def name_sampling(self, name: str) -> str:
        if name == "prompt_logprobs" and self.prompt_logprobs is None:
            return "logprobs"
        return name

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """The prompts of text or token ids. Prompts of embeddings come before them."""
        prompt = self.prompt
        if prompt is None:
            return ()
        if isinstance(prompt, str):
            return (prompt,)
        # Invariant: body.decode_prompt allows items of one type only.
        if isinstance(prompt[0], int):
            return (cast(tuple[int, ...], prompt),)
        return cast(tuple[str | tuple[int, ...], ...], prompt)

    @property
    def texts(self) -> tuple[str, ...]:
        """The prompts if they are texts; else none."""
        return tuple(prompt for prompt in self.prompts if isinstance(prompt, str))

    @property
    def id_lists(self) -> tuple[tuple[int, ...], ...]:
        """The prompts if they are token ids; else none."""
        return tuple(prompt for prompt in self.prompts if isinstance(prompt, tuple))

    @property
    def num_prompts(self) -> int:
        """The number of prompts, including prompts of embeddings."""
        return len(self.prompt_embeds or ()) + len(self.prompts)

    @property
    def num_characters(self) -> int:
        """The length of all `prompts`, and suffixes, in characters or token ids."""
        num_suffixes = len(self.prompts) if self.suffix else 0
        return sum(map(len, self.prompts)) + num_suffixes * len(self.suffix or "")
