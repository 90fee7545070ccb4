"""Puts the vectors of images and embeddings among the token ids of a chat.

    rendered    ...<image> what is this? <embeds-0-4f...> Answer: ...
    replaced    ...<image><image><image> what is this? | Answer: ...
    token ids   ... I      I      I     what is this ? -1 -1 -1 -1 Answer : ...

An image's token is repeated for each vector that the model's encoder makes of it: the
model's own processor provides the text for that. A marker cuts the text in two, and its
vectors stand between the two parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
import itertools
import re

from ...errors import InvalidParameter
from ...types.prompt import KEY_BYTES, NO_TOKEN, EmbeddedInput, Prompt
from ..tensors.embeds import DecodedEmbeds
from .preprocess import ProcessedImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageToken:
    """The tokens that stand for images.

    Args:
      text: the token of an image in a rendered chat.
      vector_id: the token of each of its vectors in a prompt; mostly the same.
    """

    text: str
    vector_id: int


def embed_whole(embeds: DecodedEmbeds, cache_salt: str) -> Prompt:
    """Make a prompt of vectors alone."""
    num_vectors = embeds.tensor.shape[0]
    return Prompt(
        token_ids=(NO_TOKEN,) * num_vectors,
        embedded=(_place_embeds(embeds, 0),),
        cache_salt=cache_salt,
    )


def mix(
    text: str,
    encode: Callable[[Sequence[str]], list[tuple[int, ...]]],
    *,
    images: Sequence[ProcessedImage],
    image_token: ImageToken | None,
    embeds: dict[str, DecodedEmbeds],
    cache_salt: str,
) -> Prompt:
    """Tokenize a rendered chat, and put its vectors into their positions.

    Args:
      encode: returns the token ids of each part of a text.
      embeds: by their markers.

    Raises:
      InvalidParameter: the template left an image or a marker out, or repeated it.
    """
    rendered = text
    if image_token is not None and images:
        text = _replace_images(text, images, image_token)
    texts, markers = _cut_at_markers(text, list(embeds))
    builder = _Builder(images, image_token)
    for ids, marker in itertools.zip_longest(encode(texts), markers):
        builder.add_tokens(ids)
        if marker is not None:
            builder.add_embeds(embeds[marker])
    return Prompt(
        token_ids=tuple(builder.token_ids),
        text=rendered,
        embedded=builder.list_embedded(),
        cache_salt=cache_salt,
    )


def _replace_images(
    text: str, images: Sequence[ProcessedImage], image_token: ImageToken
) -> str:
    pieces = text.split(image_token.text)
    if len(pieces) - 1 != len(images):
        raise InvalidParameter(
            "messages",
            f"{len(images)} images were sent, but the chat shows {len(pieces) - 1}; "
            f"the template may leave some out, and no text may contain "
            f"{image_token.text!r}",
        )
    replacements = [image.replacement for image in images]
    return "".join(
        itertools.chain.from_iterable(
            itertools.zip_longest(pieces, replacements, fillvalue="")
        )
    )


def _cut_at_markers(text: str, markers: list[str]) -> tuple[list[str], list[str]]:
    """Return the texts around the markers, and the markers in the order of the text."""
    if not markers:
        return [text], []
    found = re.split(f"({'|'.join(map(re.escape, markers))})", text)
    texts, order = found[::2], found[1::2]
    if sorted(order) != sorted(markers):
        raise InvalidParameter(
            "messages",
            "the chat template must show each part of type prompt_embeds once",
        )
    return texts, order


class _Builder:
    """Collects the token ids of a chat, and the positions of its vectors."""

    def __init__(
        self, images: Sequence[ProcessedImage], image_token: ImageToken | None
    ) -> None:
        self._images = images
        self._image_id = None if image_token is None else image_token.vector_id
        self.token_ids: list[int] = []
        self._image_positions: list[int] = []
        self._embedded: list[EmbeddedInput] = []

    def add_tokens(self, token_ids: tuple[int, ...]) -> None:
        begin = len(self.token_ids)
        if self._images:
            self._image_positions += [
                begin + offset
                for offset, token_id in enumerate(token_ids)
                if token_id == self._image_id
            ]
        self.token_ids += token_ids

    def add_embeds(self, embeds: DecodedEmbeds) -> None:
        self._embedded.append(_place_embeds(embeds, len(self.token_ids)))
        self.token_ids += [NO_TOKEN] * embeds.tensor.shape[0]

    def list_embedded(self) -> tuple[EmbeddedInput, ...]:
        """Return images and embeddings in the order of their positions."""
        embedded = [*self._embedded, *self._place_images()]
        return tuple(sorted(embedded, key=lambda item: item.runs[0]))

    def _place_images(self) -> Iterable[EmbeddedInput]:
        positions = iter(self._image_positions)
        if len(self._image_positions) != sum(i.num_vectors for i in self._images):
            raise InvalidParameter(
                "messages",
                "the tokenizer reads the images' placeholders as other tokens",
            )
        for image in self._images:
            yield EmbeddedInput(
                kind="image",
                runs=_find_runs(itertools.islice(positions, image.num_vectors)),
                keys=image.key * image.num_vectors,
                tensors=image.tensors,
            )


def _place_embeds(embeds: DecodedEmbeds, begin: int) -> EmbeddedInput:
    num_vectors = embeds.tensor.shape[0]
    assert len(embeds.keys) == KEY_BYTES * num_vectors, "every vector has a key"
    return EmbeddedInput(
        kind="embeds",
        runs=((begin, begin + num_vectors),),
        keys=embeds.keys,
        tensors={"embeds": embeds.tensor},
    )


def _find_runs(positions: Iterable[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and runs[-1][1] == position:
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    return tuple(runs)
