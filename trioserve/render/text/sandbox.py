"""The Jinja environment of chat templates.

Templates come with models from a hub, so they run in Jinja's sandbox. It has the same
filters, functions and limits as in transformers, for which templates are written.

Source: _cached_compile_jinja_template in utils/chat_template_utils.py, transformers
5.23.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
import json
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


# A server has few templates of its own; requests may bring others.
@lru_cache(maxsize=128)
def compile_template(source: str) -> Template:
    """Compile a chat template.

    Raises:
      jinja2.TemplateSyntaxError
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, loopcontrols],
    )
    environment.filters["tojson"] = _write_json
    environment.globals.update(
        raise_exception=_refuse,
        strftime_now=_format_now,
        dict=_Dict(),
        namespace=_Namespace,
    )
    return environment.from_string(source)


class _GenerationBlock(Extension):
    """{% generation %} marks the text of the model for training; here it is plain."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call, as in transformers: variables that the block sets end with it.
        call = self.call_method("_write_block")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _write_block(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _Dict:
    """The function `dict` of templates; the class itself would give them more."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(Namespace):
    """A namespace without names that begin with an underscore: no way to internals."""

    # Without named parameters, so that `namespace(self=...)` works.
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _write_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes characters for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _format_now(format: str) -> str:
    return datetime.now().strftime(format)
