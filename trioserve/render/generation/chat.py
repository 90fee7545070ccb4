"""The prompt of one conversation: its rendered text, its images and its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...config import RenderConfig
from ...errors import InvalidParameter, NotSupported
from ...types.model_info import ModelInfo
from ...types.prompt import Prompt
from ..images.mixed import mix
from ..shared.chat_renderer import ChatSteps
from ..tensors.embeds import DecodedEmbeds, decode_embeds
from ..text.chat import Conversation, Payload
from ..text.tokenizer import TextTokenizer, TokenizeOptions
from ..workers.threads import RendererWorkers
from ..workers.together import run_together

if TYPE_CHECKING:
    from ..images.renderer import ImageRenderer, ProcessedImage

# Base64 that becomes a tensor in a second: 31 MB take 0.04 s on one of two cores.
_EMBEDS_BYTES_PER_SECOND = 8e8


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """The prepared images and tensors of a conversation.

    Args:
      embeds: by the marker that stands for them in the rendered text.
    """

    images: list[ProcessedImage]
    embeds: dict[str, DecodedEmbeds]


_NO_MEDIA = Media(images=[], embeds={})


class MediaLoader:
    """Prepares images and tensors that clients send.

    Args:
      images: None for a model that sees no images.
      info: the model's length, and the width and type of its vectors.
      workers: where tensors are decoded.
    """

    def __init__(
        self,
        images: ImageRenderer | None,
        workers: RendererWorkers,
        config: RenderConfig,
        info: ModelInfo,
    ) -> None:
        self.images = images
        self._workers = workers
        self._config = config
        self._info = info

    async def load(self, conversation: Conversation) -> Media:
        """Prepare all tensors of a conversation at once, then all its images at once.

        Raises:
          InvalidParameter: there are too many images, or one of them is wrong.
          NotSupported: the server takes no tensors.
        """
        self._check_num_images(conversation)
        embeds = await run_together(
            [
                partial(self.decode_embeds, part.payload, part.param)
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
        return Media(images=images, embeds=dict(zip(markers, embeds)))

    async def decode_embeds(self, payload: Payload, param: str) -> DecodedEmbeds:
        """Decode a tensor of embeddings.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: it is not a tensor of the model's width.
          NotSupported: the server takes none.
        """
        if not self._config.enable_prompt_embeds:
            raise NotSupported(param, "start it with --enable-prompt-embeds")
        encoded = payload.encode() if isinstance(payload, str) else payload
        return await self._workers.run(
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

    def _check_num_images(self, conversation: Conversation) -> None:
        limit = 0 if self.images is None else self.images.max_images
        if len(conversation.images) > limit:
            raise InvalidParameter(
                conversation.images[limit].param,
                f"at most {limit} images are taken in a request",
            )


class PromptSteps(ChatSteps[Prompt]):
    """The steps from one conversation to its prompt."""

    def __init__(
        self, tokenizer: TextTokenizer, loader: MediaLoader, options: TokenizeOptions
    ) -> None:
        self._tokenizer = tokenizer
        self._loader = loader
        self._options = options
        self._media = _NO_MEDIA

    def check(self, conversation: Conversation) -> None:
        self._tokenizer.check_size(
            conversation.num_characters, self._options, "messages"
        )

    async def load_media(self, conversation: Conversation) -> None:
        self._media = await self._loader.load(conversation)

    def finish(self, text: str) -> Prompt:
        if self._media is _NO_MEDIA:
            return self._tokenizer.make_prompt(text, self._options, param="messages")
        return self._mix(text)

    def _mix(self, text: str) -> Prompt:
        """Tokenize a text, with images and tensors in the places that they have in it."""
        options, images = self._options, self._loader.images
        prompt = mix(
            text,
            partial(
                self._tokenizer.encode_parts,
                add_special_tokens=options.add_special_tokens,
                param="messages",
            ),
            images=self._media.images,
            image_token=None if images is None else images.token,
            embeds=self._media.embeds,
            cache_salt=options.cache_salt,
        )
        num_tokens = len(prompt.token_ids)
        if options.truncate_to is not None and num_tokens > options.truncate_to:
            raise InvalidParameter(
                "truncate_prompt_tokens", "images and embeddings cannot be cut"
            )
        self._tokenizer.check_num_tokens(num_tokens, "messages")
        return prompt
