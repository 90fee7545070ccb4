"""The files and sizes of a simulated server's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from trioserve.config import HttpConfig, MediaConfig, RenderConfig
from trioserve.render import (
    PoolingParts,
    TextParts,
    load_pooling_parts,
    load_text_parts,
)
from trioserve.types.model_info import SEES_NO_IMAGES
from trioserve.types.plan import StepPlan

from .device import Texts


class SimulatedModel:
    """The parts of a server that many runs share.

    Args:
      folder: has a tokenizer with a chat template; see tiny_tokenizer.

    Attributes:
      tokenizer, parts: of the folder.
      texts: the texts that the device writes.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.texts = Texts(self.tokenizer)
        self.parts: TextParts = load_text_parts(
            folder,
            RenderConfig(),
            media=MediaConfig(),
            image_refusal=SEES_NO_IMAGES,
            chat_template=None,
        )
        self.pooling_parts: PoolingParts = load_pooling_parts(
            folder, task="embed", sentence=None, chat_template=None
        )


@dataclass(frozen=True, kw_only=True)
class SimulatedLimits:
    """The sizes of a server, small enough that histories reach them.

    Args:
      render_seconds: see VirtualThreads.
      fail_at_steps: the step that fails on the first device, and on those after it.
      restarts: a failed engine starts again, as with an engine process.
      faults: see TellingDevice.
      seconds_of: the time of a step.
    """

    http: HttpConfig = HttpConfig()
    render: RenderConfig = RenderConfig()
    max_model_len: int = 128
    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_num_waiting: int = 1000
    depth: int = 2
    render_seconds: float = 0.01
    fail_at_steps: tuple[int, ...] = ()
    restarts: bool = False
    faults: Mapping[int, int] = field(default_factory=dict)
    seconds_of: Callable[[StepPlan], float] = lambda plan: 0.01
