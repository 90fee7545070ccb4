"""Images are prepared as by transformers, and each image only once."""

from __future__ import annotations

import base64
from functools import cache, partial
import io
import json
from pathlib import Path
import shutil
import threading
from typing import Any, get_args

from PIL import Image
import numpy as np
import pytest
import torch
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.models.auto import processing_auto
from transformers.models.smolvlm import processing_smolvlm
import trio
from trio.testing import MockClock

from trioserve.config import MediaConfig
from trioserve.errors import (
    InvalidParameter,
    MemoryFull,
    UnsupportedModel,
    WeightsBroken,
)
from trioserve.render.images.loader import EncodedImage, ImageLoader
from trioserve.render.images.renderer import (
    ImageProcessor,
    ImageRenderer,
    ProcessedImage,
    load_image_processor,
)
from trioserve.testing.processors import (
    ProcessorKind,
    save_tiny_processor,
    special_token_ids,
)
from trioserve.types.prompt import KEY_BYTES
from trioserve.types.tensors import TensorBytes

# transformers' own processor of Mistral 3 needs torchvision.
KINDS = tuple(kind for kind in get_args(ProcessorKind) if kind != "mistral3")

# The token that stands for an image.
TOKENS = {
    "qwen2_vl": "<|image_pad|>",
    "qwen2_5_vl": "<|image_pad|>",
    "qwen3_vl": "<|image_pad|>",
    "internvl": "<IMG_CONTEXT>",
    "glm4v": "<|image|>",
    "smolvlm": "<image>",
    "llava": "<image>",
    "llava_next": "<image>",
    "gemma3": "<start_of_image>",
    "gemma4": "<image_soft_token>",
}

# The token that stands for each of its vectors, where it is another one.
VECTOR_TOKENS = {"gemma3": "<image_soft_token>"}

# Square, wide, tall, tiny, and with sides that no patch size divides.
SIZES = ((64, 64), (301, 97), (50, 200), (1, 1), (129, 127))


@cache
def load_parts(folder: Path) -> tuple[ProcessorMixin, PreTrainedTokenizerBase]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = load_image_processor(folder, tokenizer, MediaConfig())
    assert processor is not None
    return processor.processor, tokenizer


def load(folder: Path, **changes: Any) -> ImageProcessor:
    return ImageProcessor(*load_parts(folder), MediaConfig(**changes))


@cache
def load_oracle(folder: Path, name: str) -> ProcessorMixin:
    """Load transformers' processor without the video part, which needs torchvision."""
    known = processing_auto.processor_class_from_name(name)

    class Oracle(known):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, name: str, argument: object) -> Any:
            return argument and super().check_argument_for_proper_class(name, argument)

        @classmethod
        def _load_part(cls, part: str) -> Any:
            parts = {"tokenizer": AutoTokenizer, "image_processor": AutoImageProcessor}
            return parts[part].from_pretrained(folder) if part in parts else None

    settings, _ = Oracle.get_processor_dict(folder)
    parts = [Oracle._load_part(part) for part in Oracle.get_attributes()]
    return Oracle.from_args_and_dict(parts, settings)


ORACLES = {
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "internvl": "InternVLProcessor",
    "glm4v": "Glm4vProcessor",
    "smolvlm": "SmolVLMProcessor",
    "llava": "LlavaProcessor",
    "llava_next": "LlavaNextProcessor",
    "gemma3": "Gemma3Processor",
    "gemma4": "Gemma4Processor",
}


def draw(size: tuple[int, int] = (64, 64), seed: int = 0) -> Image.Image:
    noise = np.random.default_rng([seed, *size]).integers(
        0, 256, (size[1], size[0], 3), dtype=np.uint8
    )
    return Image.fromarray(noise)


def data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def to_tensor(tensor: TensorBytes) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    return torch.frombuffer(tensor.data, dtype=dtype).reshape(tensor.shape)


# The call of GLM's processor makes an array in a way that NumPy has deprecated.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_becomes_the_tensors_of_transformers(
    processor_folders: dict[ProcessorKind, Path], kind: ProcessorKind
) -> None:
    folder = processor_folders[kind]
    processor, oracle = load(folder), load_oracle(folder, ORACLES[kind])
    prompt = f"What is {processor.image_token}?"
    # All inputs except the text's are the encoder's.
    about_text = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"}
    for size in SIZES:
        image = draw(size)
        mine = processor.process(image, bytes(KEY_BYTES))
        theirs = oracle(text=[prompt], images=[image], return_tensors="pt")
        ids = theirs["input_ids"]
        text = prompt.replace(processor.image_token, mine.replacement)
        assert oracle.tokenizer([text])["input_ids"] == ids.tolist(), size
        num_tokens = (ids == processor.vector_token_id).sum()
        assert mine.num_vectors == num_tokens > 0
        assert set(mine.tensors) == set(theirs) - about_text
        for name, tensor in mine.tensors.items():
            assert len(tensor.data) == to_tensor(tensor).nbytes
            assert torch.equal(to_tensor(tensor), theirs[name]), (size, name)
        assert mine.num_bytes == sum(to_tensor(t).nbytes for t in mine.tensors.values())


def test_rows_of_an_image_of_mistral_end_with_tokens(
    processor_folders: dict[ProcessorKind, Path],
) -> None:
    folder = processor_folders["mistral3"]
    mine = load(folder).process(draw((84, 56)), bytes(KEY_BYTES))
    row = "[IMG]" * 3
    assert mine.replacement == f"{row}[IMG_BREAK]{row}[IMG_END]"
    assert mine.num_vectors == 6
    images = AutoImageProcessor.from_pretrained(folder)
    theirs = images(draw((84, 56)), return_tensors="pt")
    assert set(mine.tensors) == set(theirs)
    for name, tensor in mine.tensors.items():
        assert torch.equal(to_tensor(tensor), theirs[name])


@pytest.mark.parametrize("kind", KINDS)
def test_several_images_become_the_same_tensors_as_each_alone(
    processor_folders: dict[ProcessorKind, Path], kind: ProcessorKind
) -> None:
    folder, images = processor_folders[kind], [draw((90, 60), i) for i in range(2)]
    processor = load(folder)
    assert processor.image_token == TOKENS[kind]
    vector_token = VECTOR_TOKENS.get(kind, TOKENS[kind])
    assert processor.vector_token_id == special_token_ids(folder)[vector_token]
    mine = [processor.process(image, bytes(KEY_BYTES)) for image in images]
    oracle = load_oracle(folder, ORACLES[kind])
    token = processor.image_token
    theirs = oracle(text=[f"{token} or {token}"], images=images)
    text = f"{mine[0].replacement} or {mine[1].replacement}"
    assert oracle.tokenizer([text])["input_ids"] == theirs["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_transformers_has_saved_is_read_too(
    processor_folders: dict[ProcessorKind, Path], kind: ProcessorKind, tmp_path: Path
) -> None:
    """Such a folder has the settings of all processors in one file."""
    oracle = load_oracle(processor_folders[kind], ORACLES[kind])
    settings = {
        **oracle.to_dict(),
        "processor_class": ORACLES[kind],
        "image_processor": oracle.image_processor.to_dict(),
    }
    oracle.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    image = draw((90, 60))
    mine = [
        load(f).process(image, bytes(KEY_BYTES))
        for f in (processor_folders[kind], tmp_path)
    ]
    assert mine[0] == mine[1]


def test_a_processor_that_no_file_names_is_found_by_the_models_type(copy: Path) -> None:
    change(copy / "preprocessor_config.json", processor_class=None)
    (copy / "config.json").write_text('{"model_type": "qwen2_vl"}')
    assert load(copy).image_token == "<|image_pad|>"


@pytest.fixture
def copy(tmp_path: Path, processor_folders: dict[ProcessorKind, Path]) -> Path:
    """A model to break."""
    source = processor_folders["qwen2_vl"]
    return Path(shutil.copytree(source, tmp_path / "model"))


def change(path: Path, **changes: object) -> None:
    settings = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))


def test_a_model_without_an_image_processor_has_none(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert load_image_processor(tokenizer_folder, tokenizer, MediaConfig()) is None
    # A processor for sound.
    (tmp_path / "preprocessor_config.json").write_text(
        '{"feature_extractor_type": "WhisperFeatureExtractor"}'
    )
    assert load_image_processor(tmp_path, tokenizer, MediaConfig()) is None


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"processor_class": "NoSuchProcessor"}, UnsupportedModel),
        ({"processor_class": None}, UnsupportedModel),
        # One is not for text and images; the tokenizer lacks the other one's tokens.
        ({"processor_class": "Wav2Vec2Processor"}, UnsupportedModel),
        ({"processor_class": "LlavaProcessor"}, UnsupportedModel),
        ({"image_processor_type": "NoSuchImageProcessor"}, WeightsBroken),
        ({"patch_size": "fourteen"}, WeightsBroken),
        ({"auto_map": {"AutoProcessor": "evil.Evil"}}, None),
        (
            {
                "auto_map": {"AutoImageProcessor": "evil.Evil"},
                "image_processor_type": "Evil",
            },
            WeightsBroken,
        ),
    ],
)
def test_broken_and_unknown_processors_end_the_start(
    copy: Path, changes: dict[str, object], error: type[Exception] | None
) -> None:
    """None of them runs code from the model's folder."""
    change(copy / "preprocessor_config.json", **changes)
    (copy / "evil.py").write_text("raise SystemExit('run')")
    if error is None:
        assert load(copy).image_token == "<|image_pad|>"
    else:
        with pytest.raises(error):
            load(copy)


def test_the_error_names_a_package_that_a_processor_lacks(
    processor_folders: dict[ProcessorKind, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolVLM's writes lengths of videos in words. It needs num2words in any case."""
    monkeypatch.setattr(processing_smolvlm, "num2words", None)
    with pytest.raises(UnsupportedModel, match="pip install num2words"):
        load_parts.__wrapped__(processor_folders["smolvlm"])


def test_files_that_are_no_objects_end_the_start(copy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(copy)
    for text in ("", "[1]", "{", "7"):
        (copy / "preprocessor_config.json").write_text(text)
        with pytest.raises(WeightsBroken):
            load_image_processor(copy, tokenizer, MediaConfig())


# All further tests use the smallest processor.


@pytest.fixture
def processor(processor_folders: dict[ProcessorKind, Path]) -> ImageProcessor:
    return load(processor_folders["llava"])


class CountingLoader(ImageLoader):
    """Counts decoded images; decoding waits for the gate, if there is one."""

    def __init__(self) -> None:
        super().__init__(MediaConfig())
        self.num_decoded = 0
        self.gate: trio.Event | None = None

    async def decode(self, encoded: EncodedImage, *, param: str) -> Image.Image:
        self.num_decoded += 1
        if self.gate is not None:
            await self.gate.wait()
        return await super().decode(encoded, param=param)


async def test_an_image_is_prepared_for_the_model(processor: ImageProcessor) -> None:
    renderer = ImageRenderer(processor, MediaConfig())
    image = draw((90, 60))
    prepared = await renderer.render(data_url(image), param="x")
    assert prepared == processor.process(image, prepared.key)
    assert len(prepared.key) == KEY_BYTES
    assert (renderer.token.text, renderer.token.vector_id) == (
        processor.image_token,
        processor.vector_token_id,
    )


async def test_an_image_that_was_prepared_is_not_even_decoded_again(
    processor: ImageProcessor,
) -> None:
    loader = CountingLoader()
    renderer = ImageRenderer(processor, MediaConfig(), loader=loader)
    url = data_url(draw())
    first = await renderer.render(url, param="x")
    assert await renderer.render(url.encode(), param="y") is first
    other = await renderer.render(data_url(draw(seed=1)), param="x")
    assert other.key != first.key
    assert loader.num_decoded == 2
    statistics = renderer.statistics()
    assert (renderer.num_hits, renderer.num_misses, statistics.entries) == (1, 2, 2)
    assert statistics.num_bytes == first.num_bytes + other.num_bytes
    assert statistics.media.busy == statistics.processing.busy == 0


async def test_the_least_recently_used_images_make_room(
    processor: ImageProcessor, processor_folders: dict[ProcessorKind, Path]
) -> None:
    size = processor.process(draw(), bytes(KEY_BYTES)).num_bytes
    small = load(processor_folders["llava"], processor_cache_memory=str(2 * size))
    renderer = ImageRenderer(small, MediaConfig())
    urls = [data_url(draw(seed=seed)) for seed in range(3)]
    for index in (0, 1, 0, 2, 0, 1):
        await renderer.render(urls[index], param="x")
    # 0 and 1 are new; 0 is found; 2 replaces 1; 0 is found; 1 replaces 2.
    statistics = renderer.statistics()
    assert (renderer.num_hits, renderer.num_misses, statistics.entries) == (2, 4, 2)
    assert statistics.num_bytes == 2 * size


async def test_new_images_are_refused_while_those_in_use_take_all_the_memory(
    processor_folders: dict[ProcessorKind, Path], mock_clock: MockClock
) -> None:
    processor = load(processor_folders["llava"], processor_cache_memory="0")
    size = processor.process(draw(), bytes(KEY_BYTES)).num_bytes
    config = MediaConfig(max_images_memory=str(2 * size), processor_cache_memory="0")
    renderer = ImageRenderer(processor, config)
    urls = [data_url(draw(seed=seed)) for seed in range(4)]
    first, second = [await renderer.render(url, param="x") for url in urls[:2]]
    assert renderer.num_held_bytes == 2 * size
    mock_clock.jump(20.0)
    # An image counts as long as its tensors live.
    tensors = first.tensors
    del first
    assert renderer.num_held_bytes == 2 * size
    del tensors
    assert renderer.num_held_bytes == size
    third = await renderer.render(urls[2], param="x")
    assert third.num_bytes == second.num_bytes == size
    with pytest.raises(MemoryFull) as caught:
        await renderer.render(urls[3], param="x")
    # One image was freed in twenty seconds, and two are held.
    assert caught.value.retry_after_seconds == pytest.approx(40, abs=10)


@pytest.mark.parametrize("memory", ["0", "1"])
async def test_a_cache_may_be_off_or_too_small_for_any_image(
    processor_folders: dict[ProcessorKind, Path], memory: str
) -> None:
    renderer = ImageRenderer(
        load(processor_folders["llava"], processor_cache_memory=memory), MediaConfig()
    )
    url = data_url(draw())
    first, second = [await renderer.render(url, param="x") for _ in range(2)]
    assert first == second
    statistics = renderer.statistics()
    assert (renderer.num_hits, renderer.num_misses, statistics.entries) == (0, 2, 0)


async def test_requests_that_bring_the_same_image_at_once_wait_for_one(
    gated: tuple[CountingLoader, ImageRenderer],
) -> None:
    loader, renderer = gated
    url = data_url(draw())
    prepared: list[ProcessedImage] = []

    async def render() -> None:
        prepared.append(await renderer.render(url, param="x"))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(render)
            await wait_for_decoding(loader)
            loader.gate.set()
    assert loader.num_decoded == 1
    assert prepared[0] is prepared[1] is prepared[2]
    assert (renderer.num_hits, renderer.num_misses) == (2, 1)


@pytest.fixture
def gated(processor: ImageProcessor) -> tuple[CountingLoader, ImageRenderer]:
    loader = CountingLoader()
    loader.gate = trio.Event()
    return loader, ImageRenderer(processor, MediaConfig(), loader=loader)


async def wait_for_decoding(loader: CountingLoader) -> None:
    """Wait until all tasks are as far as they get with the gate shut."""
    await trio.testing.wait_all_tasks_blocked()
    while loader.num_decoded == 0 or loader.workers.statistics().busy:
        await trio.sleep(0.001)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_request_prepares_the_image_itself_if_the_other_one_leaves(
    gated: tuple[CountingLoader, ImageRenderer],
) -> None:
    loader, renderer = gated
    url = data_url(draw())
    prepared: list[ProcessedImage] = []

    async def render(scope: trio.CancelScope) -> None:
        with scope:
            prepared.append(await renderer.render(url, param="x"))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            first, second = trio.CancelScope(), trio.CancelScope()
            nursery.start_soon(render, first)
            await wait_for_decoding(loader)
            nursery.start_soon(render, second)
            await wait_for_decoding(loader)
            first.cancel()
            loader.gate.set()
    assert len(prepared) == 1
    assert loader.num_decoded == 2
    assert renderer.statistics().entries == 1


async def test_every_request_gets_the_error_of_its_image(
    gated: tuple[CountingLoader, ImageRenderer],
) -> None:
    """A request that waited for the same image gets an error with its own field."""
    loader, renderer = gated
    params: list[str | None] = []

    async def render(param: str) -> None:
        with pytest.raises(InvalidParameter) as refused:
            await renderer.render("data:image/png;base64,AAAA", param=param)
        params.append(refused.value.param)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(render, "messages[0]")
            nursery.start_soon(render, "messages[1]")
            await wait_for_decoding(loader)
            loader.gate.set()
    assert sorted(filter(None, params)) == ["messages[0]", "messages[1]"]
    statistics = renderer.statistics()
    assert (statistics.entries, statistics.media.busy) == (0, 0)


async def test_an_image_that_the_processor_does_not_take_is_refused(
    tmp_path: Path,
) -> None:
    """This processor does not resize, and needs a whole number of patches."""
    save_tiny_processor("qwen2_vl", tmp_path, do_resize=False, patch_size=16)
    renderer = ImageRenderer(load(tmp_path), MediaConfig())
    with pytest.raises(InvalidParameter, match="65 x 64 pixels") as refused:
        await renderer.render(data_url(draw((65, 64))), param="messages[0]")
    assert refused.value.param == "messages[0]"
    assert renderer.statistics().entries == 0
    assert (await renderer.render(data_url(draw((64, 64))), param="x")).num_vectors == 4


async def test_images_are_processed_one_after_the_other(
    processor: ImageProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_done = 0
    busy = threading.Lock()
    process = processor.process

    def watch(image: Image.Image, key: bytes) -> ProcessedImage:
        nonlocal num_done
        assert busy.acquire(blocking=False), "two at once"
        processed = process(image, key)
        busy.release()
        num_done += 1
        return processed

    monkeypatch.setattr(processor, "process", watch)
    renderer = ImageRenderer(processor, MediaConfig())
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for seed in range(3):
                url = data_url(draw(seed=seed))
                nursery.start_soon(partial(renderer.render, url, param="x"))
    assert num_done == 3
    assert renderer.statistics().processing.workers == 1
