"""Which functions block the event loop, although they run in another thread?

Question
  A function that holds the GIL stops the event loop, even if it runs in another thread.
  For each function that the server gives to a worker: how long does it take, and how
  long does the loop not run, if the function runs in a worker's thread, and if it runs
  on the loop itself?

Machine
  Any; run it alone. The tokenizer and the image processor are small ones from the test
  kit, so nothing is downloaded; they use the same libraries as real ones.

How to read it
  time      time of the function in the thread; median of the rounds.
  thread    the longest gap of the loop while the function runs in a thread: its median
            and its largest of all rounds. A task wakes up every millisecond; a gap is
            the time between two of its ticks, less that millisecond. "idle" is a thread
            that sleeps: the machine's own noise.
  loop      the gap if the function runs on the loop: about its time.
  A gap with the thread that is near the function's time shows that it holds the GIL.

    python bench/offload.py [--rounds 9]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
import json
from pathlib import Path
import statistics
import sys
import tempfile
import time

from kit.options import make_parser, read_positive
from kit.rendering.model import save_smolvlm_processor
from kit.rendering.payloads import HIDDEN_SIZE, draw_photo, encode_image, encode_tensor
import torch
import trio

from trioserve.api.chat.body import CHAT_BODY
from trioserve.api.completions.body import COMPLETION_BODY
from trioserve.api.decode.body import decode_chunks
from trioserve.api.shared.message_mappings import MessageMappings
from trioserve.config import MediaConfig, RenderConfig
from trioserve.errors import ContextLengthExceeded
from trioserve.programs.bench.measuring.texts import write_words
from trioserve.render.generation.loading import load_text_parts
from trioserve.render.tensors.embeds import decode_embeds
from trioserve.render.text.chat import read_messages
from trioserve.render.text.template import ChatOptions, ChatTemplate
from trioserve.render.text.tokenizer import TextTokenizer, TokenizeOptions

TICK_SECONDS = 0.001
CHUNK_BYTES = 65_536

Work = Callable[[], object]


def cut(body: bytes) -> list[bytes | bytearray]:
    """Cut a body into parts, as they come from the socket."""
    return [body[i : i + CHUNK_BYTES] for i in range(0, len(body), CHUNK_BYTES)]


def decode_completion(parts: list[bytes | bytearray]) -> object:
    """Decode a completion for a model of 131,072 tokens; return its refusal, if any."""
    try:
        return decode_chunks(list(parts), COMPLETION_BODY, 131_072)
    except ContextLengthExceeded as error:
        return error


def list_work(folder: Path) -> Iterator[tuple[str, Work]]:
    """Yield every function that the server gives to a worker, with an input."""
    text = write_words(10**5, 0, words="the dog sleeps on and on in Rome".split())
    parts = load_text_parts(
        folder,
        RenderConfig(),
        media=MediaConfig(),
        takes_images=False,
        chat_template=None,
    )
    tokenizer = TextTokenizer(
        parts.tokenizer.backend, parts.vocabulary, max_model_len=10**6
    )
    template = ChatTemplate(parts.tokenizer, trusts_requests=False, image_token=None)
    ids = tokenizer.encode(text, False, param="")
    yield "idle", partial(time.sleep, 0.05)

    small, large = encode_tensor(2048), encode_tensor(8192)
    for name, body in (
        ("JSON, 22 MB of base64", {"prompt_embeds": small}),
        ("JSON, 20 MB of text", {"prompt": text * 40}),
        ("JSON, 20 MB of ids, refused", {"prompt": list(ids) * 40}),
        ("JSON, 130,000 ids", {"prompt": (list(ids) * 2)[:130_000]}),
    ):
        yield name, partial(decode_completion, cut(json.dumps(body).encode()))
    turns = [{"role": "user", "content": "x" * 100}] * 400
    encoded = json.dumps({"messages": turns}).encode()
    parts = cut(encoded)
    yield (
        "JSON, 400 messages",
        lambda: decode_chunks(list(parts), CHAT_BODY, 10**9),
    )
    messages = MessageMappings(CHAT_BODY.decode(encoded).messages)

    def run_template() -> object:
        conversation = read_messages(messages, template.find_form(ChatOptions()))
        return template.prepare(conversation.messages, ChatOptions()).render()

    yield "template, 400 messages", run_template
    yield "tokenize 500 KB", partial(
        tokenizer.make_prompt, text, TokenizeOptions(), param=""
    )
    yield "detokenize 100,000 ids", partial(
        tokenizer.decode, ids, skip_special_tokens=False
    )
    for name, payload in (("2048", small), ("8192", large)):
        yield f"embeddings, {name} x 4096 bfloat16", partial(
            decode_embeds,
            payload.encode(),
            hidden_size=HIDDEN_SIZE,
            dtype="bfloat16",
            max_tokens=10_000,
            param="",
        )
    yield from list_image_work(folder)


def list_image_work(folder: Path) -> Iterator[tuple[str, Work]]:
    from transformers import AutoTokenizer

    from trioserve.render.images.decode import decode_image
    from trioserve.render.images.processors import load_image_processor

    image = draw_photo(0)
    for kind in ("JPEG", "PNG"):
        data = encode_image(image, kind)
        yield f"decode a {kind} of 1 megapixel", partial(
            decode_image, data, max_pixels=2**26, param=""
        )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = load_image_processor(folder, tokenizer, MediaConfig())
    assert processor is not None
    yield "prepare it as SmolVLM does", partial(processor.process, image, bytes(16))


async def measure_gap(work: Work, *, in_thread: bool) -> tuple[float, float]:
    """Return the longest gap of the loop, and the time of the work."""
    longest = 0.0
    async with trio.open_nursery() as nursery:

        async def tick() -> None:
            nonlocal longest
            last = time.perf_counter()
            while True:
                await trio.sleep(TICK_SECONDS)
                now = time.perf_counter()
                longest = max(longest, now - last - TICK_SECONDS)
                last = now

        nursery.start_soon(tick)
        await trio.sleep(0.01)
        longest = 0.0
        began = time.perf_counter()
        limiter = trio.CapacityLimiter(1)
        if in_thread:
            result = await trio.to_thread.run_sync(work, limiter=limiter)
        else:
            result = work()
        seconds = time.perf_counter() - began
        # The loop's thread frees the result, so this counts as a part of its gap.
        del result
        await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    return longest, seconds


async def measure(folder: Path, rounds: int) -> None:
    print(write_row("", "time", "thread", "(max)", "loop"), "  ms")
    for name, work in list_work(folder):
        work()
        in_thread, on_loop = [], []
        for _ in range(rounds):
            in_thread.append(await measure_gap(work, in_thread=True))
            on_loop.append(await measure_gap(work, in_thread=False))
        gaps = [gap for gap, _ in in_thread]
        figures = (
            statistics.median(seconds for _, seconds in in_thread),
            statistics.median(gaps),
            max(gaps),
            statistics.median(gap for gap, _ in on_loop),
        )
        print(write_row(name, *(f"{1000 * figure:.1f}" for figure in figures)))


def write_row(name: str, *cells: str) -> str:
    """Write one row; rows are printed one by one, because each takes a while."""
    return f"{name:36}" + "".join(f"{cell:>9}" for cell in cells)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=read_positive, default=9)
    arguments = parser.parse_args()
    # The server's switch interval. prepare_interpreter would also stop the collector.
    sys.setswitchinterval(0.0005)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_smolvlm_processor(Path(temporary) / "model")
        trio.run(measure, folder, arguments.rounds)


if __name__ == "__main__":
    main()
