"""Turns text and chat messages into engine inputs, and token ids back into text.

Work that grows with its input runs in threads under limiters, mostly in the *renderer
workers*. A Detokenizer is cheap enough for the event loop. This room knows the
tokenizer, its chat template, and the formats of images and tensors. It does not know
HTTP or the engine.

Its doors are load_text_parts and make_renderer, which returns a Renderer, and for models
that pool load_pooling_parts and make_pooling_renderer. The first of each pair needs no
loaded model. The module pooling.vectors writes the results of models that pool.
"""

from .generation.loading import TextParts, load_text_parts, make_renderer
from .generation.renderer import Renderer
from .pooling import (
    ChatInput,
    PoolingParts,
    PoolingRenderer,
    TextInput,
    TextOptions,
    count_text,
    load_pooling_parts,
    make_pooling_renderer,
)
from .shared.base_renderer import BaseRenderer
from .text.chat import TURN_CHARACTERS, Base64Image, count_characters
from .text.detokenizer import Detokenizer
from .text.offsets import TextOffsets
from .text.reasoning import ReasoningTags
from .text.stop import MAX_STOP_CHARACTERS
from .text.template import ChatOptions, ReasoningEffort
from .text.tokenizer import TokenizeOptions
from .tools.detokenizer import SequenceText
from .tools.forced_calls import list_schemas
from .tools.tool_table import ToolTable
from .workers.processes import open_template_processes
from .workers.threads import RendererWorkers, TookTooLong
from .workers.together import run_together
from .workers.turns import Workplace

__all__ = [
    "MAX_STOP_CHARACTERS",
    "TURN_CHARACTERS",
    "Base64Image",
    "BaseRenderer",
    "ChatInput",
    "ChatOptions",
    "Detokenizer",
    "PoolingParts",
    "PoolingRenderer",
    "ReasoningEffort",
    "ReasoningTags",
    "Renderer",
    "RendererWorkers",
    "SequenceText",
    "TextInput",
    "TextOffsets",
    "TextOptions",
    "TextParts",
    "TokenizeOptions",
    "TookTooLong",
    "ToolTable",
    "Workplace",
    "count_characters",
    "count_text",
    "list_schemas",
    "load_pooling_parts",
    "load_text_parts",
    "make_pooling_renderer",
    "make_renderer",
    "open_template_processes",
    "run_together",
]
