"""The spelling of options in programs: max_num_seqs, where the command has --max-num-seqs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import re

from ..errors import ForeignOption, InvalidConfig
from .foreign import list_foreign
from .options import list_options
from .whole import ServeConfig

# A flag, and no part of a path or of another flag.
_FLAG = re.compile(r"(?<![\w./-])--([a-zA-Z][\w-]*)(?!\w|[./]\w)")


@contextmanager
def naming_keywords() -> Iterator[None]:
    """Name keywords, not flags, in errors of the block that are about options.

    Raises:
      InvalidConfig, ForeignOption: the same object, with another message.
    """
    try:
        yield
    except (InvalidConfig, ForeignOption) as error:
        error.args = (_spell(str(error)),)
        raise


def _spell(message: str) -> str:
    """Replace flags by keywords."""
    ours = {option.name for option in list_options(ServeConfig)}
    known = {*ours, *(name.replace("-", "_") for name in list_foreign())}

    def replace(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        positive = name.removeprefix("no_")
        # A message begins with the option that it is about, whether there is one or not.
        if name in known or flag.start() == 0:
            return name
        return f"{positive}=False" if positive in ours else flag[0]

    return _FLAG.sub(replace, message)
