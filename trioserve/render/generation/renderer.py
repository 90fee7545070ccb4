"""Prompts are made and texts read back by the renderer workers.

Every call that takes time with the length of its input runs in one of their threads; a
chat template, which is a program over a client's messages, under a clock, in a thread or
in a process. Images have limits of their own (images/): a chat waits for its images
before it takes a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ...config import RenderConfig
from ...errors import InvalidParameter, NotSupported
from ...types.model_info import ModelInfo
from ...types.prompt import Prompt
from ..images.mixed import embed_whole, mix
from ..tensors.embeds import DecodedEmbeds, decode_embeds
from ..text.chat import (
    ChatMessage,
    Conversation,
    Payload,
    count_characters,
    read_messages,
)
from ..text.detokenizer import Detokenizer
from ..text.reasoning import ReasoningTags
from ..text.reasoning_detokenizer import ReasoningDetokenizer
from ..text.template import ChatOptions, ChatTemplate
from ..text.tokenizer import TextTokenizer, TokenizeOptions, cut
from ..text.vocabulary import Vocabulary
from ..workers.jobs import cut_jobs
from ..workers.processes import TemplateProcesses
from ..workers.together import run_together
from ..workers.waiting_room import open_waiting_room
from ..workers.workers import RendererWorkers, expect_seconds, explain_slow_template

if TYPE_CHECKING:
    from ..images.images import ImageRenderer, ProcessedImage

T = TypeVar("T")

# Base64 that becomes a tensor in a second: 31 MB take 0.04 s on one of two cores.
_EMBEDS_BYTES_PER_SECOND = 8e8

_CHAT_TOKENS = TokenizeOptions(add_special_tokens=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Media:
    """What a conversation's parts became."""

    images: list[ProcessedImage]
    embeds: dict[str, DecodedEmbeds]


_NO_MEDIA = _Media(images=[], embeds={})


class Renderer:
    """Turns text and messages into prompts, and token ids into text.

    Args:
      tokenizer, vocabulary, template: the model's.
      info: the model's length, and the width and type of its vectors.
      images: None for a model that sees none.
      reasoning: None where reasoning is not told apart.

    Attributes:
      room: where requests are while they are rendered; callers enter them.
      workers: where the calls run.
      processes: where templates run instead, while they are open.
      vocabulary: the bytes of each token.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        config: RenderConfig,
        info: ModelInfo,
        images: ImageRenderer | None = None,
        reasoning: ReasoningTags | None = None,
    ) -> None:
        self.room = open_waiting_room(config)
        self.workers = RendererWorkers(config.renderer_num_workers)
        self.processes: TemplateProcesses | None = None
        self.images = images
        self.reasoning = reasoning
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._template = template
        self._config = config
        self._info = info

    @property
    def is_stuck(self) -> bool:
        """Whether work of some kind is refused, because it does not end."""
        return self.workers.is_stuck or (
            self.images is not None and self.images.is_stuck
        )

    async def render_text(
        self,
        text: str,
        options: TokenizeOptions = TokenizeOptions(),
        *,
        param: str = "prompt",
    ) -> Prompt:
        """Tokenize a text.

        Args:
          param: the request's field, for errors.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: it gives no tokens, or is no Unicode text.
        """
        [prompt] = await self.render_texts([text], options, param=param)
        return prompt

    async def render_texts(
        self,
        texts: Sequence[str],
        options: TokenizeOptions = TokenizeOptions(),
        *,
        param: str = "prompt",
    ) -> list[Prompt]:
        """Tokenize texts, a job of a few at a time: others have their turn in between.

        Raises:
          ContextLengthExceeded, InvalidParameter: as render_text.
        """
        self.check_sizes(texts, options, param=param)
        sizes = list(map(len, texts))
        prompts: list[Prompt] = []
        for job in cut_jobs(sizes):
            part = slice(job.start, job.stop)
            prompts += await self.workers.run(
                partial(self._tokenize_all, texts[part], options, param),
                expected_seconds=expect_seconds(sum(sizes[part])),
            )
        return prompts

    def check_sizes(
        self,
        texts: Sequence[str],
        options: TokenizeOptions = TokenizeOptions(),
        *,
        param: str = "prompt",
    ) -> None:
        """Refuse texts that cannot fit whatever they say, before they wait for a worker.

        Raises:
          ContextLengthExceeded
        """
        for text in texts:
            self._tokenizer.check_size(len(text), options, param)

    async def render_ids(
        self,
        token_ids: tuple[int, ...],
        options: TokenizeOptions = TokenizeOptions(),
        *,
        with_text: bool = False,
        skip_special_tokens: bool = False,
    ) -> Prompt:
        """Take token ids as they are, cut where the options say so.

        Args:
          with_text: tell what they say.
          skip_special_tokens: leave such tokens out of that.

        Raises:
          InvalidParameter: an id is not the tokenizer's.
        """
        token_ids = cut(token_ids, options)
        text = None
        if with_text:
            text = await self.detokenize(
                token_ids, skip_special_tokens=skip_special_tokens, param="prompt"
            )
        return Prompt(token_ids=token_ids, text=text, cache_salt=options.cache_salt)

    async def render_embeds(
        self, payload: Payload, *, cache_salt: str = "", param: str = "prompt_embeds"
    ) -> Prompt:
        """Decode vectors that stand for a whole prompt.

        Args:
          payload: base64 of a tensor, (num_tokens, hidden_size), that torch.save or
            safetensors wrote.

        Raises:
          NotSupported: the server takes none.
          ContextLengthExceeded: the model could not add a single token to them.
          InvalidParameter: they are no such tensor.
        """
        decoded = await self._decode_embeds(payload, param)
        mixed = embed_whole(decoded)
        return Prompt(
            token_ids=mixed.token_ids, embedded=mixed.embedded, cache_salt=cache_salt
        )

    async def render_chat(
        self,
        messages: Sequence[ChatMessage | Mapping[str, object]],
        chat: ChatOptions = ChatOptions(),
        options: TokenizeOptions = _CHAT_TOKENS,
    ) -> Prompt:
        """Render a conversation by the chat template and tokenize it.

        Args:
          options: templates usually write special tokens themselves.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: the messages or what the template makes of them is wrong,
            or it takes longer than it may.
          NotSupported: messages hold what this model or server does not take.
          RendererStuck: too many templates did so, and their threads still run.
        """
        seconds = expect_seconds(count_characters(messages))
        if self.processes is None:
            begun = await self._run_template(
                partial(self._begin_chat, messages, chat, options), seconds
            )
            if isinstance(begun, Prompt):
                return begun
            media = await self._render_media(begun)
            return await self._run_template(
                partial(self._finish_chat, begun, media, chat, options), seconds
            )
        conversation = await self.workers.run(
            partial(self._read, messages, chat, options), expected_seconds=seconds
        )
        media = await self._render_media(conversation)
        call = self._template.prepare(conversation.messages, chat)
        with explain_slow_template(self._config.template_timeout):
            text = await self.processes.render(
                call, self._config.template_timeout, expected_seconds=seconds
            )
        return await self.workers.run(
            partial(self._assemble, text, media, options),
            expected_seconds=expect_seconds(len(text)),
        )

    async def render_bad_words(
        self, words: Sequence[str], *, param: str = "bad_words"
    ) -> tuple[tuple[int, ...], ...]:
        """Tokenize words that must not be written, as they begin a text and within.

        Raises:
          InvalidParameter: a word is no Unicode text, or has no token.
        """
        return await self.workers.run(
            partial(self._tokenize_words, words, param),
            expected_seconds=expect_seconds(sum(map(len, words))),
        )

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
            ),
            expected_seconds=expect_seconds(len(token_ids)),
        )

    def open_detokenizer(
        self,
        prompt: Prompt,
        *,
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        splits_reasoning: bool = False,
    ) -> Detokenizer:
        """Begin the text of a sequence that follows `prompt`.

        Cheap enough for the event loop, as each push is.

        Args:
          splits_reasoning: tell reasoning apart, if the server does that.

        Raises:
          InvalidParameter: a stop string is empty, or they are too long in all.
        """
        # Special tokens before it leave an output at the start of a text.
        special = self.vocabulary.special_token_ids
        open_text: Callable[..., Detokenizer] = partial(Detokenizer, self.vocabulary)
        if splits_reasoning and (tags := self.reasoning) is not None:
            place = tags.find_place(prompt.text)
            open_text = partial(ReasoningDetokenizer, self.vocabulary, tags, place)
        return open_text(
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

    async def _run_template(self, work: Callable[[], T], expected_seconds: float) -> T:
        limit = self._config.template_timeout
        with explain_slow_template(limit):
            return await self.workers.run_limited(
                work, limit, expected_seconds=expected_seconds
            )

    async def _render_media(self, conversation: Conversation) -> _Media:
        """Prepare a conversation's tensors, then its images, each kind side by side."""
        self._check_num_images(conversation)
        embeds = await run_together(
            [
                partial(self._decode_embeds, part.payload, part.param)
                for part in conversation.embeds
            ]
        )
        markers = (part.marker for part in conversation.embeds)
        images = []
        # Only a model that sees has image parts.
        if self.images is not None:
            images = await run_together(
                [
                    partial(self.images.render, part.url, param=part.param)
                    for part in conversation.images
                ]
            )
        return _Media(images=images, embeds=dict(zip(markers, embeds)))

    def _check_num_images(self, conversation: Conversation) -> None:
        limit = 0 if self.images is None else self.images.max_images
        if len(conversation.images) > limit:
            raise InvalidParameter(
                conversation.images[limit].param,
                f"at most {limit} images are taken in a request",
            )

    async def _decode_embeds(self, payload: Payload, param: str) -> DecodedEmbeds:
        if not self._config.enable_prompt_embeds:
            raise NotSupported(param, "start it with --enable-prompt-embeds")
        encoded = payload.encode() if isinstance(payload, str) else payload
        return await self.workers.run(
            partial(
                decode_embeds,
                encoded,
                hidden_size=self._info.hidden_size,
                dtype=self._info.dtype,
                max_tokens=self._info.max_model_len,
                param=param,
            ),
            expected_seconds=len(encoded) / _EMBEDS_BYTES_PER_SECOND,
        )

    # The rest runs in worker threads.

    def _tokenize_all(
        self, texts: Sequence[str], options: TokenizeOptions, param: str
    ) -> list[Prompt]:
        return [self._tokenize(text, options, param) for text in texts]

    def _tokenize(self, text: str, options: TokenizeOptions, param: str) -> Prompt:
        token_ids, text = self._tokenizer.tokenize(text, options, param=param)
        return Prompt(token_ids=token_ids, text=text, cache_salt=options.cache_salt)

    def _tokenize_words(
        self, words: Sequence[str], param: str
    ) -> tuple[tuple[int, ...], ...]:
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            alone = self._tokenizer.encode(word.lstrip(), False, param=param)
            if not alone:
                raise InvalidParameter(param, "each must have a token")
            found[alone] = None
            spaced = self._tokenizer.encode(f" {word.lstrip()}", False, param=param)
            # Otherwise the space is a token before the same ones.
            if spaced[-len(alone) :] != alone:
                found[spaced] = None
        return tuple(found)

    def _begin_chat(
        self,
        messages: Sequence[ChatMessage | Mapping[str, object]],
        chat: ChatOptions,
        options: TokenizeOptions,
    ) -> Prompt | Conversation:
        """Render a chat of text alone; give others back to wait for their media."""
        conversation = self._read(messages, chat, options)
        if conversation.has_media:
            return conversation
        return self._finish_chat(conversation, _NO_MEDIA, chat, options)

    def _read(
        self,
        messages: Sequence[ChatMessage | Mapping[str, object]],
        chat: ChatOptions,
        options: TokenizeOptions,
    ) -> Conversation:
        conversation = read_messages(messages, self._template.find_form(chat))
        self._tokenizer.check_size(conversation.num_characters, options, "messages")
        return conversation

    def _finish_chat(
        self,
        conversation: Conversation,
        media: _Media,
        chat: ChatOptions,
        options: TokenizeOptions,
    ) -> Prompt:
        call = self._template.prepare(conversation.messages, chat)
        return self._assemble(call.render(), media, options)

    def _assemble(self, text: str, media: _Media, options: TokenizeOptions) -> Prompt:
        if not (media.images or media.embeds):
            return self._tokenize(text, options, "messages")
        mixed = mix(
            text,
            partial(
                self._tokenizer.encode_parts,
                add_special_tokens=options.add_special_tokens,
                param="messages",
            ),
            images=media.images,
            image_token=None if self.images is None else self.images.token,
            embeds=media.embeds,
        )
        num_tokens = len(mixed.token_ids)
        if options.truncate_to is not None and num_tokens > options.truncate_to:
            raise InvalidParameter(
                "truncate_prompt_tokens", "images and embeddings cannot be cut"
            )
        self._tokenizer.check_num_tokens(num_tokens, "messages")
        return Prompt(
            token_ids=mixed.token_ids,
            text=text,
            cache_salt=options.cache_salt,
            embedded=mixed.embedded,
        )

    def _decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, param: str
    ) -> str:
        highest = self.vocabulary.size - 1
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= highest:
            raise InvalidParameter(param, f"ids must be between 0 and {highest}")
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens
        )
