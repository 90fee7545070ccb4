"""The families of models whose GGUF files are read without transformers' reader.

llama.cpp gives tensors other names, orders and values than transformers. Each family has a
file with the configuration and the rules that undo this. A name that no rule has, or that
the model lacks, refuses the file.

families   the table by architecture
rules      rules that several families share
shared     fields of configurations that all families have
reading    the tensors of a file by transformers' names
"""

from ...types.gguf_rules import Unreadable
from .families import Family, find_family
from .reading import read_tensors

__all__ = ["Family", "Unreadable", "find_family", "read_tensors"]
