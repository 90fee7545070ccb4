"""The spelling of options in programs: max_num_seqs, where the command has --max-num-seqs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import re

from ..errors import ForeignOption, InvalidConfig

_FLAG = re.compile(r"--([a-z][a-z0-9-]+)")


@contextmanager
def naming_keywords() -> Iterator[None]:
    """Name keywords, not flags, in errors of the block that are about options.

    Raises:
      InvalidConfig, ForeignOption: the same object, with another message.
    """
    try:
        yield
    except (InvalidConfig, ForeignOption) as error:
        error.args = (_FLAG.sub(lambda flag: flag[1].replace("-", "_"), str(error)),)
        raise
