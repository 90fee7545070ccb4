"""The families of models whose GGUF files are read without transformers' reader.

llama.cpp gives tensors other names, orders and values than transformers. Each family has a
file with the configuration and the rules that undo this. A name that no rule has, or that
the model lacks, refuses the file.

families   the table by architecture
rules      names of tensors, and what undoes a change
shared     fields of configurations that all families have
reading    the tensors of a file by transformers' names
"""

from .families import Family, find_family
from .reading import read_tensors
from .rules import Unreadable

__all__ = ["Family", "Unreadable", "find_family", "read_tensors"]
