"""The families of models whose answers have a form: reasoning and tool calls, a row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStyle:
    """The tags with which a family of models marks its reasoning.

    Args:
      start, end: the tags around the reasoning.
      assumes_start: an answer begins inside its reasoning if the prompt does not end in
        a tag.
    """

    start: str
    end: str
    assumes_start: bool = False


_THINK: Final = ReasoningStyle(start="<think>", end="</think>")
_OPEN_THINK: Final = ReasoningStyle(start="<think>", end="</think>", assumes_start=True)

# Names as in vLLM 0.33, and `kimi` (Kimi-VL) as in SGLang. Several have equal styles: these
# models differ in their templates alone.
REASONING_STYLES: Final[Mapping[str, ReasoningStyle]] = {
    "deepseek_r1": _OPEN_THINK,
    "deepseek_v3": _THINK,
    # A line end follows the label `thought`, and is dropped as all space behind a tag.
    "gemma4": ReasoningStyle(start="<|channel>thought", end="<channel|>"),
    "glm45": _THINK,
    "granite": ReasoningStyle(
        start="Here is my thought process:", end="Here is my response:"
    ),
    "kimi": ReasoningStyle(start="◁think▷", end="◁/think▷"),
    "minimax_m2": _OPEN_THINK,
    "mistral": ReasoningStyle(start="[THINK]", end="[/THINK]"),
    "nemotron_v3": _OPEN_THINK,
    "olmo3": _OPEN_THINK,
    "qwen3": _THINK,
    "seed_oss": ReasoningStyle(start="<seed:think>", end="</seed:think>"),
}

# The scanner of each family, in render/tools/. A template is of the first family of which it
# has all parts; several families have the tag <tool_call> of Hermes.
TOOL_FAMILIES: Final[Mapping[str, str]] = {
    "deepseek_v3": "deepseek_v3.DeepSeekV3Scanner",
    "functiongemma": "gemma.FunctionGemmaScanner",
    "gemma4": "gemma.Gemma4Scanner",
    "gpt_oss": "gpt_oss.GptOssScanner",
    "glm4": "glm4.Glm4Scanner",
    "kimi_k2": "kimi_k2.KimiK2Scanner",
    "mistral": "mistral.MistralScanner",
    "phi4_mini": "phi4_mini.Phi4MiniScanner",
    "granite": "tagged_lists.GraniteScanner",
    "qwen3_coder": "qwen3_coder.Qwen3CoderScanner",
    "llama3_json": "llama3_json.Llama3JsonScanner",
    "llama4_pythonic": "llama4_pythonic.Llama4PythonicScanner",
    "hermes": "hermes.HermesScanner",
    "minimax_m2": "invocations.MiniMaxM2Scanner",
    "deepseek_v32": "invocations.DeepSeekV32Scanner",
    "lfm2": "lfm2.Lfm2Scanner",
    "nemotron_v2": "tagged_lists.NemotronV2Scanner",
    "jamba": "tagged_lists.JambaScanner",
}

# The values of --reasoning-parser and --tool-call-parser.
if TYPE_CHECKING:
    ReasoningParser = str
    ToolCallParser = str
else:
    ReasoningParser = Literal[("none", *sorted(REASONING_STYLES))]
    ToolCallParser = Literal[("auto", "none", *sorted(TOOL_FAMILIES))]
