"""Prompts are made and texts read back by the renderer workers.

Every call that takes time with the length of its input runs in one of their threads; a
chat template, which is a program over a client's messages, under a clock. The raw
tokenizer is shared by all of them: `encode_batch_fast` and `decode_batch` release the
GIL (`encode` and `decode` hold it) and change nothing in it, whereas setting truncation
or padding for a call, as transformers' `__call__` does, fails with "Already borrowed"
while another thread is inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..config import RenderConfig
from ..errors import ContextLengthExceeded, InvalidParameter
from ..steps import Prompt
from .chat import ChatMessage, apply_template, read_messages
from .detokenizer import Detokenizer
from .vocabulary import Vocabulary
from .workers import RendererWorkers, TookTooLong

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Renderer:
    """Turns text and messages into prompts, and token ids into text.

    Args:
      tokenizer: a fast one that nobody else changes, without truncation or padding.
      max_model_len: tokens of prompt and output together.

    Attributes:
      workers: where the calls run.
      vocabulary: the bytes of each token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: Vocabulary,
        config: RenderConfig,
        *,
        max_model_len: int,
    ) -> None:
        self.workers = RendererWorkers(config.renderer_num_workers)
        self._template_timeout = config.template_timeout
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._max_model_len = max_model_len

    async def render_text(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
        cache_salt: str = "",
    ) -> Prompt:
        """Tokenize a text.

        Args:
          param: the request's field, for errors.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: it gives no tokens, or is no Unicode text.
        """
        return await self.workers.run(
            partial(
                self._tokenize,
                text,
                add_special_tokens=add_special_tokens,
                param=param,
                cache_salt=cache_salt,
            )
        )

    async def render_chat(
        self,
        messages: Sequence[ChatMessage | Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
        cache_salt: str = "",
    ) -> Prompt:
        """Render a conversation by the chat template and tokenize it.

        Args:
          add_generation_prompt: end with the header of the answer.
          continue_final_message: leave the last message open, to be continued.
          add_special_tokens: templates usually write these themselves.
          chat_template_kwargs: further variables for the template.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: the messages or what the template makes of them is wrong,
            or it takes longer than it may.
          NotSupported: messages hold something else than text.
          RendererStuck: too many templates did so, and their threads still run.
        """
        work = partial(
            self._render_chat,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            chat_template_kwargs=chat_template_kwargs or {},
            cache_salt=cache_salt,
        )
        seconds = self._template_timeout
        try:
            return await self.workers.run_limited(work, seconds)
        except TookTooLong:
            raise InvalidParameter(
                "messages",
                f"the chat template takes longer than {seconds:g} s for them",
            ) from None

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        param: str = "tokens",
    ) -> str:
        """The whole text of some ids, as the tokenizer itself decodes it.

        Raises:
          InvalidParameter: an id is not the tokenizer's.
        """
        return await self.workers.run(
            partial(
                self._decode,
                token_ids,
                skip_special_tokens=skip_special_tokens,
                param=param,
            )
        )

    def open_detokenizer(
        self,
        prompt: Prompt,
        *,
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> Detokenizer:
        """Begin the text of a sequence that follows `prompt`.

        Cheap enough for the event loop, as each push is.

        Raises:
          InvalidParameter: a stop string is empty, or they are too long in all.
        """
        # Special tokens before it leave an output at the start of a text.
        special = self.vocabulary.special_token_ids
        return Detokenizer(
            self.vocabulary,
            at_start=skip_special_tokens and special.issuperset(prompt.token_ids),
            stop=stop,
            include_stop_str_in_output=include_stop_str_in_output,
            skip_special_tokens=skip_special_tokens,
            min_tokens=min_tokens,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; a special token's name for those."""
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The token's bytes as text, with U+FFFD where it holds half a character."""
        return self.vocabulary.token_bytes(token_id).decode(errors="replace")

    # The rest runs in worker threads.

    def _render_chat(
        self,
        messages: Sequence[ChatMessage | Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        add_special_tokens: bool,
        chat_template_kwargs: Mapping[str, object],
        cache_salt: str,
    ) -> Prompt:
        conversation = read_messages(messages)
        num_characters = sum(len(message["content"]) for message in conversation)
        self._check_num_characters(num_characters, "messages")
        text = apply_template(
            self._tokenizer,
            conversation,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=chat_template_kwargs,
        )
        return self._tokenize(
            text,
            add_special_tokens=add_special_tokens,
            param="messages",
            cache_salt=cache_salt,
        )

    def _tokenize(
        self, text: str, *, add_special_tokens: bool, param: str, cache_salt: str
    ) -> Prompt:
        self._check_num_characters(len(text), param)
        _check_encodable(text, param)
        encoding = self._backend.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )[0]
        self._check_num_tokens(len(encoding), param)
        return Prompt(token_ids=tuple(encoding.ids), text=text, cache_salt=cache_salt)

    def _decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, param: str
    ) -> str:
        highest = self.vocabulary.size - 1
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= highest:
            raise InvalidParameter(param, f"ids must be between 0 and {highest}")
        texts: list[str] = self._backend.decode_batch(
            [token_ids], skip_special_tokens=skip_special_tokens
        )
        return texts[0]

    def _check_num_characters(self, num_characters: int, param: str) -> None:
        """Refuse what no tokenization can make short enough, before it takes time."""
        # Rounded up: as many tokens are needed even if all of them are the longest.
        num_tokens = -(-num_characters // self.vocabulary.longest_token)
        if num_tokens >= self._max_model_len:
            raise ContextLengthExceeded(
                num_tokens=num_tokens,
                limit=self._max_model_len,
                param=param,
                is_lower_bound=True,
            )

    def _check_num_tokens(self, num_tokens: int, param: str) -> None:
        if num_tokens == 0:
            raise InvalidParameter(param, "must not be empty")
        # One output token must fit.
        if num_tokens >= self._max_model_len:
            raise ContextLengthExceeded(
                num_tokens=num_tokens, limit=self._max_model_len, param=param
            )


def _check_encodable(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            param,
            f"character {error.start} is half of a surrogate pair, which is no text",
        ) from None
