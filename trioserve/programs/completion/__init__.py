"""`trioserve completion`: a script that completes commands, flags and values in a shell.

The script is made from the table of commands and from the dataclasses of their options, so a
new command or option needs nothing here. It holds all that it offers, except files and cached
models, which the shell lists itself: no key press starts Python. shtab 1.13 was tried in place of
the writer for bash: it completes no value behind "=", no name with ":" and no file with a blank,
and Tab runs commands in $(...) in a folder's name. argcomplete starts Python at each Tab.

command           the command
tables            commands and flags, as the three writers see them
bash, zsh, fish   one writer for each shell
"""

from .command import with_completion

__all__ = ["with_completion"]
