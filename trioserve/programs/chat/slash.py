"""Commands of a conversation, such as /help: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ...errors import InvalidConfig
from .config import SamplingConfig, change_sampling
from .conversation import Conversation, Question
from .images import ImageRefused, read_image
from .restoring import NotRestored, Restored, restore
from .saving import NotSaved, save

# The program's next act after a command.
Next = Literal["prompt", "answer", "model", "exit"]

_KEYS: Final = """\
Enter sends. Alt-Enter, Ctrl-J or \\ before Enter begin a new line.
Ctrl-C stops an answer, and Ctrl-D ends the conversation.
A line that begins with a blank is not a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a command.

    Args:
      text: shown to the user.
      model: the name of the wanted model; empty to see the names.
      is_error: the user did something wrong.
    """

    text: str = ""
    next: Next = "prompt"
    model: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashCommand:
    """A command.

    Args:
      argument: as /help shows it.
      run: takes the words behind the name, as one text.
      aliases: other names.
    """

    name: str
    argument: str = ""
    summary: str
    run: Callable[[str], Outcome]
    aliases: tuple[str, ...] = ()


class SlashCommands:
    """The commands of one conversation.

    Args:
      takes_images: whether the model does; None if nobody knows.

    Attributes:
      sampling: of the next answers.
      model: the name of the model, for messages.
      names: of all commands, with their slashes.
    """

    def __init__(
        self,
        conversation: Conversation,
        sampling: SamplingConfig,
        *,
        model: str,
        takes_images: bool | None,
    ) -> None:
        self.sampling = sampling
        self._conversation = conversation
        self.model = model
        self._takes_images = takes_images
        self._saved: set[Path] = set()
        self._commands = self._list_commands()
        self._by_name: Mapping[str, SlashCommand] = {
            name: each for each in self._commands for name in (each.name, *each.aliases)
        }
        self.names = [f"/{name}" for name in self._by_name]

    def _list_commands(self) -> list[SlashCommand]:
        return [
            SlashCommand(name="help", summary="list the commands", run=self._help),
            SlashCommand(
                name="system",
                argument="[TEXT]",
                summary="set the system message; none unsets it",
                run=self._system,
            ),
            SlashCommand(
                name="image",
                argument="[FILE]",
                summary="add a picture to the next question",
                run=self._image,
            ),
            SlashCommand(
                name="regenerate",
                summary="answer the last question again",
                run=self._regenerate,
                aliases=("retry",),
            ),
            SlashCommand(
                name="continue",
                summary="go on with the last answer, for example if it was cut off",
                run=self._continue,
            ),
            SlashCommand(
                name="undo",
                summary="forget the last question and its answer",
                run=self._undo,
            ),
            SlashCommand(
                name="set",
                argument="[NAME VALUE]",
                summary="set a sampling option, such as temperature; none unsets it",
                run=self._set,
            ),
            SlashCommand(
                name="model",
                argument="[NAME]",
                summary="choose the model or the adapter that answers",
                run=lambda name: Outcome(next="model", model=name),
            ),
            SlashCommand(
                name="save",
                argument="FILE",
                summary="write the conversation as Markdown, or as JSON for .json",
                run=self._save,
            ),
            SlashCommand(
                name="load",
                argument="FILE",
                summary="go on with a conversation that /save has written",
                run=self._load,
            ),
            SlashCommand(
                name="clear", summary="begin a new conversation", run=self._clear
            ),
            SlashCommand(
                name="exit",
                summary="end the program",
                run=lambda _: Outcome(next="exit"),
                aliases=("quit",),
            ),
        ]

    def run(self, line: str) -> Outcome:
        """Run the command of a line that begins with a slash."""
        name, _, argument = line[1:].strip().partition(" ")
        command = self._by_name.get(name)
        if command is None:
            return _fail(f"there is no /{name}; /help lists the commands")
        argument = argument.strip()
        if argument and not command.argument:
            return _fail(f"/{name} takes nothing behind it")
        return command.run(argument)

    def _help(self, _: str) -> Outcome:
        rows = [
            (f"/{each.name} {each.argument}", each.summary) for each in self._commands
        ]
        lines = [f"{call:<21}{summary}" for call, summary in rows]
        return Outcome(text="\n".join([*lines, "", _KEYS]))

    def _system(self, text: str) -> Outcome:
        if text:
            self._conversation.system = "" if text.lower() == "none" else text
        system = self._conversation.system
        return Outcome(text=f"system: {system}" if system else "no system message")

    def _image(self, path: str) -> Outcome:
        images = self._conversation.images
        if not path:
            names = ", ".join(image.name for image in images)
            return Outcome(text=f"pictures: {names}" if names else "no pictures")
        if self._takes_images is False:
            return _fail(f"{self.model} takes no pictures")
        try:
            images.append(read_image(_unquote(path)))
        except ImageRefused as error:
            return _fail(str(error))
        return Outcome(text=f"{images[-1].name} belongs to your next question")

    def _regenerate(self, _: str) -> Outcome:
        question = self._conversation.ask_again()
        if question is None:
            return _fail("there is no question yet")
        return Outcome(next="answer")

    def _continue(self, _: str) -> Outcome:
        if not self._conversation.go_on():
            return _fail("there is no answer yet")
        return Outcome(next="answer")

    def _undo(self, _: str) -> Outcome:
        question = self._conversation.undo()
        if question is None:
            return _fail("there is no question yet")
        return Outcome(text=f"forgotten: {_shorten(question)}")

    def _set(self, words: str) -> Outcome:
        if words:
            name, _, text = words.partition(" ")
            try:
                self.sampling = change_sampling(self.sampling, name, text.strip())
            except InvalidConfig as error:
                return _fail(str(error).removeprefix("--"))
        given = self.sampling.list_given()
        lines = [f"{name} {value}" for name, value in given.items()]
        return Outcome(text="\n".join(lines) or "sampling as the model has it")

    def _save(self, path: str) -> Outcome:
        if not path:
            return _fail("name a file: /save FILE")
        if not self._conversation.turns:
            return _fail("there is nothing to save yet")
        path = _unquote(path)
        known = Path(path).expanduser().absolute() in self._saved
        try:
            file = save(self._conversation, path, may_replace=known)
        except NotSaved as error:
            return _fail(str(error))
        self._saved.add(file)
        return Outcome(text=f"saved as {path}")

    def _load(self, path: str) -> Outcome:
        if not path:
            return _fail("name a file: /load FILE")
        path = _unquote(path)
        try:
            restored = restore(path)
        except NotRestored as error:
            return _fail(str(error))
        if restored.has_images and self._takes_images is False:
            return _fail(f"{path} has pictures, and {self.model} takes none")
        self._conversation.replace(restored.system, restored.turns, restored.unanswered)
        # The conversation goes on there.
        self._saved.add(Path(path).expanduser().absolute())
        return Outcome(text=_describe_restored(restored))

    def _clear(self, _: str) -> Outcome:
        self._conversation.clear()
        return Outcome(text="a new conversation")


def _describe_restored(restored: Restored) -> str:
    number = len(restored.turns)
    what = "question with its answer" if number == 1 else "questions with their answers"
    lines = [f"loaded {number} {what}"]
    if restored.unanswered is not None:
        lines.append("the last question has no answer; /regenerate asks it")
    else:
        lines.append(f"the last question: {_shorten(restored.questions[-1])}")
    if restored.num_lost_images:
        lines.append("its pictures are left out: a Markdown file has only their names")
    return "\n".join(lines)


def _shorten(question: Question) -> str:
    return question.text.strip().split("\n")[0][:60]


def _unquote(path: str) -> str:
    """Take the quotation marks off that a file manager puts around a dropped file."""
    if len(path) > 1 and path[0] == path[-1] and path[0] in "'\"":
        return path[1:-1]
    return path


def _fail(text: str) -> Outcome:
    return Outcome(text=text, is_error=True)
