"""A model that reads images and wide vectors, and computes almost nothing."""

from __future__ import annotations

from pathlib import Path

from kit.rendering.payloads import HIDDEN_SIZE

from trioserve.testing.models import save_tiny_vision_model
from trioserve.testing.processors import save_tiny_processor

# Like the templates of today's models: tools as JSON, contents as text or as parts, and
# a case for each role.
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call one or more functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for part in message.content %}
                {%- if part.type == 'image' %}
                    {{- '<image>' }}
                {%- elif part.type == 'text' %}
                    {{- part.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role != 'system' or not loop.first %}
        {{- raise_exception('unexpected role ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def save_smolvlm_processor(folder: Path) -> Path:
    """Save an image processor that cuts an image of a megapixel as SmolVLM's does.

    It makes 3 x 4 parts of 364 x 364 pixels and adds the whole image.
    """
    return save_tiny_processor(
        "smolvlm",
        folder,
        max_image_size={"longest_edge": 364},
        size={"longest_edge": 4 * 364},
    )


def save_model(folder: Path) -> None:
    """Save the model, its processor and its template.

    The vision tower makes only four patches of each part, as many as the processor
    expects.
    """
    save_smolvlm_processor(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    save_tiny_vision_model(
        "smolvlm",
        folder,
        text_config={
            "hidden_size": HIDDEN_SIZE,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "max_position_embeddings": 32768,
        },
        vision_config={"image_size": 364, "patch_size": 182, "num_hidden_layers": 1},
        scale_factor=1,
    )
