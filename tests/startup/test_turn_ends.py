"""A chat ends at the end of a turn, also if the model's files name another token."""

from __future__ import annotations

from dataclasses import replace
import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from trioserve.render.text.loading import load_tokenizer
from trioserve.render.text.turn_end import find_turn_end
from trioserve.startup.turn_ends import find_turn_ends
from trioserve.testing.fake_device import make_info
from trioserve.weights import Weights

EOS = 1
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}END\n{% endfor %}"
PARTS = "{% for m in messages %}{{ m.content[0].text }}<|done|>{% endfor %}"


def chat(end: str) -> str:
    return CHAT.replace("END", end)


def save(
    folder: Path,
    *special: str,
    template: str | None = None,
    plain: tuple[str, ...] = (),
    eos: int | None = None,
) -> Path:
    """Save a tokenizer: id 0 is a word, 1 the end of a text, and then come the others."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.add_special_tokens(["</s>", *special])
    tokenizer.add_tokens([AddedToken(each) for each in plain])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    if eos is not None:
        described = json.dumps({"eos_token_id": eos})
        (folder / "generation_config.json").write_text(described)
    return folder


def find(
    folder: Path, *, is_gguf: bool = False, chat_template: str | None = None
) -> set[int]:
    gguf = folder / "model.gguf" if is_gguf else None
    weights = Weights(folder=folder, name="m", gguf=gguf)
    info = replace(make_info(vocab_size=16), eos_token_ids=frozenset({EOS}))
    return set(find_turn_ends(weights, info, chat_template))


@pytest.mark.parametrize(
    "name", ["<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>"]
)
def test_tokens_end_a_turn_by_their_names(tmp_path: Path, name: str) -> None:
    assert find(save(tmp_path, name, eos=EOS), is_gguf=True) == {2}


def test_a_token_that_is_not_special_ends_a_turn_by_its_name(tmp_path: Path) -> None:
    """Converters mark some as the user's own tokens."""
    assert find(save(tmp_path, plain=("<|im_end|>",)), is_gguf=True) == {2}


def test_messages_within_a_turn_end_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path, "<|end|>", "<|call|>", "<|return|>")
    assert find(folder, is_gguf=True) == {3, 4}


@pytest.mark.parametrize("template", [chat("<|done|>"), chat("  <|done|>"), PARTS])
def test_the_template_tells_what_ends_a_turn(tmp_path: Path, template: str) -> None:
    folder = save(tmp_path, "<|done|>", "<|user|>", template=template, eos=EOS)
    assert find(folder, is_gguf=True) == {2}


def test_a_name_that_the_template_does_not_write_is_not_all(tmp_path: Path) -> None:
    folder = save(tmp_path, "<|end|>", "<|done|>", template=chat("<|done|>"))
    assert find(folder, is_gguf=True) == {2, 3}


def test_the_template_of_the_option_counts(tmp_path: Path) -> None:
    folder = save(tmp_path, "<|a|>", "<|b|>", template=chat("<|a|>"))
    assert find(folder, is_gguf=True, chat_template=chat("<|b|>")) == {3}


@pytest.mark.parametrize(
    "template",
    [
        # Text, nothing, a token that is not special, and no template.
        *(chat("### End"), chat(""), chat("<done>"), None),
        "{{ raise_exception('no') }}",
    ],
)
def test_a_turn_that_ends_in_text_has_no_token(
    tmp_path: Path, template: str | None
) -> None:
    folder = save(tmp_path, "<|user|>", template=template, plain=("<done>",))
    assert find(folder, is_gguf=True) == set()


def test_the_longest_token_that_fits_is_the_end(tmp_path: Path) -> None:
    folder = save(tmp_path, "<|d", "<|done|>", template=chat("<|done|>"))
    assert find_turn_end(load_tokenizer(folder)) == 3


def test_the_ends_that_an_author_names_are_all(tmp_path: Path) -> None:
    folder = save(tmp_path, "<|im_end|>", template=chat("<|im_end|>"), eos=EOS)
    assert find(folder) == set()
    # Without that file they are found, as in a GGUF file.
    (folder / "generation_config.json").unlink()
    assert find(folder) == {2}


def test_ids_beyond_the_head_are_left_out(tmp_path: Path) -> None:
    names = [f"<|{number}|>" for number in range(20)]
    assert find(save(tmp_path, *names, "<|im_end|>"), is_gguf=True) == set()


@pytest.mark.parametrize("content", [None, "{", '{"added_tokens": 1}'])
def test_a_broken_tokenizer_is_not_reported_here(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    assert find(tmp_path, is_gguf=True) == set()
