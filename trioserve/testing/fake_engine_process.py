"""An engine process with a fake device: it needs no weights and no torch.

supervisor_process.py starts it, in the place of startup/engine_process.py. Every sequence
repeats ANSWER.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..engine.generation.core import LocalCore
from ..engine.process.core_server import host_clients
from ..engine.process.messages import EngineLoaded, StartEngine, ToEngine
from ..processes import MessageStream, run_as_child
from ..scheduler.generation.scheduler import Scheduler
from ..startup.log_lines import set_up_logging
from .fake_device import FakeDevice, FakeExecutor, FakeMemory, make_info

ANSWER = "The quick brown fox jumps over the lazy dog. "

_STEP_SECONDS = 0.002
_MAX_MODEL_LEN = 2048
_BLOCK_SIZE = 16
_MAX_BATCHED_TOKENS = 2048
_NUM_BLOCKS = 4096


async def main(stream: MessageStream[Any]) -> None:
    """Serve a fake core to several clients."""
    begin = await stream.receive()
    assert isinstance(begin, StartEngine), "StartEngine comes first"
    set_up_logging(begin.log_level, origin=begin.origin)
    folder = Path(begin.config.model.model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = tokenizer.encode(ANSWER).ids
    device = FakeDevice(
        lambda seed, index: text[index % len(text)], block_size=_BLOCK_SIZE
    )
    info = make_info(_MAX_MODEL_LEN, vocab_size=tokenizer.get_vocab_size())
    scheduler = Scheduler(
        num_blocks=_NUM_BLOCKS,
        block_size=_BLOCK_SIZE,
        max_num_seqs=begin.config.scheduler.max_num_seqs,
        max_num_batched_tokens=_MAX_BATCHED_TOKENS,
        max_model_len=_MAX_MODEL_LEN,
    )
    executor: Any = FakeExecutor(device.step, step_seconds=_STEP_SECONDS, depth=2)
    memory = FakeMemory(give_seconds=0.0, take_seconds=0.0)
    core = LocalCore(scheduler, executor, info=info, memory=memory)
    stream.send_nowait(EngineLoaded(info=info, pooling=None))
    await host_clients(core, stream)


if __name__ == "__main__":
    run_as_child(main, receives=ToEngine)
