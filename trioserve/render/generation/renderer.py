"""The renderer of models that generate: prompts and chats in, engine inputs out.

Every call whose time grows with its input runs in a renderer worker. A chat template is
a program over a client's messages; it runs under a time limit (chat_renderer.py).
Images have limits of their own (images/): a chat waits for its images without a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...config import RenderConfig
from ...errors import InvalidParameter, NotSupported
from ...types.model_info import ModelInfo
from ...types.prompt import Prompt
from ..images.mixed import embed_whole
from ..shared.base_renderer import BaseRenderer
from ..shared.chat_renderer import Messages
from ..shared.structure import StructureCompiler
from ..text.chat import Payload
from ..text.detokenizer import Detokenizer
from ..text.fill_in import find_fill_in_form
from ..text.offsets import TextOffsets, locate_tokens
from ..text.reasoning import ReasoningTags
from ..text.reasoning_detokenizer import ReasoningDetokenizer
from ..text.template import ChatOptions, ChatTemplate
from ..text.tokenizer import TextTokenizer, TokenizeOptions, cut
from ..text.vocabulary import Vocabulary
from ..tools.detokenizer import SequenceText, ToolDetokenizer
from ..tools.families import ToolFormat
from ..tools.tool_table import ToolTable
from ..workers.threads import CHARACTERS_PER_SECOND, RendererWorkers, cut_jobs
from ..workers.turns import Workplace
from .chat import MediaLoader, PromptSteps

if TYPE_CHECKING:
    from ..images.renderer import ImageRenderer

_CHAT_TOKENS = TokenizeOptions(add_special_tokens=False)


class Renderer(BaseRenderer):
    """Turns text and messages into prompts, and token ids into text.

    Args:
      tokenizer, vocabulary, template: the model's.
      info: the model's length, and the width and type of its vectors.
      images: None for a model that sees no images.
      reasoning: None if reasoning is not separated from the answer.
      tool_format: None if tool calls stay text.
      workers: see BaseRenderer.

    Attributes:
      vocabulary: the bytes of each token.
      structures: compiles the forms of structured output.
      separates_reasoning: the reasoning of chats is separated from the answer.
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
        tool_format: ToolFormat | None = None,
        workers: RendererWorkers | None = None,
    ) -> None:
        super().__init__(tokenizer, template, config, workers)
        self.images = images
        self.reasoning = reasoning
        self.tool_format = tool_format
        self.vocabulary = vocabulary
        self.structures = StructureCompiler(self.workers)
        self._finds_channels = tool_format is not None and tool_format.splits_reasoning
        self.separates_reasoning = reasoning is not None or self._finds_channels
        self._tokenizer = tokenizer
        self._fill_in = find_fill_in_form(vocabulary.has_token)
        self._media = MediaLoader(images, self.workers, config, info)

    def list_workers(self) -> Iterator[tuple[str, RendererWorkers]]:
        yield from super().list_workers()
        if self.images is not None:
            yield from self.images.list_workers()

    def list_workplaces(self) -> Iterator[Workplace]:
        yield from super().list_workplaces()
        if self.images is not None:
            yield Workplace(
                name="media connection", limiter=self.images.loader.connections
            )

    @property
    def is_stuck(self) -> bool:
        """True if templates or images are refused, because too many do not end."""
        images = self.images
        return super().is_stuck or (
            images is not None and images.loader.workers.is_stuck
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
          InvalidParameter: it has no tokens, or is not Unicode text.
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
        """Tokenize texts in jobs of a few texts, so that other requests run in between.

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
                expected_seconds=sum(sizes[part]) / CHARACTERS_PER_SECOND,
            )
        return prompts

    def check_sizes(
        self,
        texts: Sequence[str],
        options: TokenizeOptions = TokenizeOptions(),
        *,
        param: str = "prompt",
    ) -> None:
        """Refuse texts that are too long for any tokenization, before they wait.

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
        """Make a prompt of token ids, cut to the length that the options allow.

        Args:
          with_text: also decode the ids into the prompt's text.
          skip_special_tokens: leave special tokens out of that text.

        Raises:
          InvalidParameter: the tokenizer does not have one of the ids.
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
        """Decode a tensor of embeddings that is a whole prompt.

        Args:
          payload: base64 of a tensor, (num_tokens, hidden_size), that torch.save or
            safetensors wrote.

        Raises:
          NotSupported: the server takes no tensors.
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: it is not such a tensor.
        """
        decoded = await self._media.decode_embeds(payload, param)
        return embed_whole(decoded, cache_salt)

    async def render_chat(
        self,
        messages: Messages,
        chat: ChatOptions = ChatOptions(),
        options: TokenizeOptions = _CHAT_TOKENS,
    ) -> Prompt:
        """Render a conversation by the chat template and tokenize it.

        Args:
          options: by default no special tokens are added, because templates usually
            write them themselves.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: the messages are wrong, the template refuses them, or it
            takes longer than its time limit.
          NotSupported: this model or server does not take a part of a message.
          RendererStuck: too many templates exceeded the limit and still run.
        """
        steps = PromptSteps(self._tokenizer, self._media, options)
        return await self.chats.render(messages, chat, steps)

    async def render_bad_words(
        self, words: Sequence[str]
    ) -> tuple[tuple[int, ...], ...]:
        """Tokenize forbidden words: at the beginning of a text, and behind a space.

        Raises:
          InvalidParameter: a word is not Unicode text, or has no token.
        """
        return await self.workers.run(
            partial(self._tokenize_words, words),
            expected_seconds=sum(map(len, words)) / CHARACTERS_PER_SECOND,
        )

    async def place_answer(self, text: str, calls: str | None = None) -> str:
        """Return the grammar of a chat's answer.

        Args:
          text: the grammar of its text.
          calls: the grammar of the calls that it may have instead.
        """
        form = self.tool_format
        if form is None or (calls is None and form.scanner.answer_form is None):
            return text
        return await self.workers.run(
            partial(form.place_answer, text, calls),
            expected_seconds=(len(text) + len(calls or "")) / CHARACTERS_PER_SECOND,
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
        tools: ToolTable | None = None,
        takes_one_call: bool = False,
        calls_lead: bool = False,
        calls_only: bool = False,
    ) -> SequenceText:
        """Open the detokenizer of a sequence that continues `prompt`.

        It is cheap enough for the event loop, and so is each push.

        Args:
          splits_reasoning: separate the reasoning from the answer, if the server is
            configured for it.
          tools: the tools that the model may call, if calls are separated from the answer.
          takes_one_call: end the sequence behind its first call.
          calls_lead: calls stand at the beginning of the answer, or nowhere.
          calls_only: the answer has nothing but calls.

        Raises:
          InvalidParameter: a stop string is empty, or they are too long in all.
        """
        open_text: Callable[..., Detokenizer] = partial(Detokenizer, self.vocabulary)
        if splits_reasoning and (tags := self.reasoning) is not None:
            place = tags.find_place(prompt.text)
            open_text = partial(ReasoningDetokenizer, self.vocabulary, tags, place)
        if tools is None and splits_reasoning and self._finds_channels:
            tools = ToolTable(())
        form = None if tools is None else self.tool_format
        text = open_text(
            at_start=self._is_at_start(prompt, skip_special_tokens),
            stop=stop,
            include_stop_str_in_output=include_stop_str_in_output,
            skip_special_tokens=skip_special_tokens,
            kept_token_ids=frozenset(
                () if form is None else form.special_tags.values()
            ),
            min_tokens=min_tokens,
        )
        if form is None or tools is None:
            return text
        scanner = form.scanner(
            tools,
            takes_one=takes_one_call,
            calls_lead=calls_lead,
            calls_only=calls_only,
        )
        return ToolDetokenizer(text, scanner)

    def open_offsets(
        self, prompt: Prompt, *, skip_special_tokens: bool, begin: int = 0
    ) -> TextOffsets:
        """Find where tokens stand in the text that a detokenizer makes of them.

        Args:
          begin: the offset of this text in the answer's text.
        """
        return TextOffsets(
            self.vocabulary,
            at_start=self._is_at_start(prompt, skip_special_tokens),
            skip_special_tokens=skip_special_tokens,
            begin=begin,
        )

    def locate_tokens(self, prompt: Prompt) -> list[int]:
        """Return where the tokens of a prompt begin in its text."""
        return locate_tokens(self.vocabulary, prompt.token_ids, prompt.text or "")

    def _is_at_start(self, prompt: Prompt, skip_special_tokens: bool) -> bool:
        """Return whether no text stands before the output."""
        special = self.vocabulary.special_token_ids
        return skip_special_tokens and special.issuperset(prompt.token_ids)

    @property
    def fills_in(self) -> bool:
        """True if the tokenizer has the tokens that fill_in needs."""
        return self._fill_in is not None

    def fill_in(self, text: str, suffix: str) -> str:
        """Return the prompt whose answer stands between two texts.

        Raises:
          NotSupported: the tokenizer has no tokens for that.
        """
        if self._fill_in is None:
            raise NotSupported(
                "suffix", "the model's tokenizer has no tokens to fill in the middle"
            )
        return self._fill_in.write(text, suffix)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; its name if it is special."""
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """Return a token as the tokenizer spells it, such as "Ġthe"."""
        return self.vocabulary.token_text(token_id)

    # The rest runs in worker threads.

    def _tokenize_all(
        self, texts: Sequence[str], options: TokenizeOptions, param: str
    ) -> list[Prompt]:
        return [
            self._tokenizer.make_prompt(text, options, param=param) for text in texts
        ]

    def _tokenize_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        param = "bad_words"
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            alone = self._tokenizer.encode(word.lstrip(), False, param=param)
            if not alone:
                raise InvalidParameter(param, "each must have a token")
            found[alone] = None
            spaced = self._tokenizer.encode(f" {word.lstrip()}", False, param=param)
            # If it ends with the same tokens, the space is a token of its own.
            if spaced[-len(alone) :] != alone:
                found[spaced] = None
        return tuple(found)
