"""Several models of one server: the file, the folder, and the words of the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trioserve.config import ServedModel, list_models, read_models
from trioserve.errors import InvalidConfig


def read(path: Path, text: str, **values: object) -> dict[str, ServedModel]:
    file = path / "models.toml"
    file.write_text(text)
    return {each.names[0]: each for each in read_models(str(file), values)}


def test_a_table_wins_over_the_options_of_all_models(tmp_path: Path) -> None:
    models = read(
        tmp_path,
        '[chat]\nmodel = "org/chat"\nmax_num_seqs = 3\npreload = true\n'
        '["team/em bed"]\nmodel = "org/embed"\nserved_model_name = ["e"]\n',
        max_num_seqs=7,
        port=1,
    )
    assert models["chat"].config.scheduler.max_num_seqs == 3
    assert (models["chat"].preload, models["team/em bed"].preload) == (True, False)
    other = models["team/em bed"]
    assert other.config.scheduler.max_num_seqs == 7
    assert other.names == other.config.model.served_model_name == ("team/em bed", "e")


def test_relative_paths_begin_beside_the_file(tmp_path: Path) -> None:
    tmp_path.joinpath("here").mkdir()
    tmp_path.joinpath("chat.jinja").write_text("x")
    models = read(
        tmp_path,
        '[a]\nmodel = "here"\nchat_template = "chat.jinja"\nadapter = ["l=./lora"]\n'
        '[b]\nmodel = "./missing"\n[c]\nmodel = "org/model"\n[d]\nmodel = "/x/y.gguf"\n',
    )
    assert models["a"].config.model.model == str(tmp_path / "here")
    assert models["a"].config.model.chat_template == str(tmp_path / "chat.jinja")
    assert models["a"].config.model.adapter == (f"l={tmp_path / 'lora'}",)
    assert models["b"].config.model.model == str(tmp_path / "missing")
    assert models["c"].config.model.model == "org/model"
    assert models["d"].config.model.model == "/x/y.gguf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model is there"),
        ("x", "cannot read"),
        ("model = 'a'", "model stands alone"),
        ("[a]\nmax_num_seqs = 1", r"\['a'\] there is no key `model`"),
        ("[a]\nmodel = 'x'\nmax_num_seq = 1", r"\['a'\] .*did you mean"),
        ("[a]\nmodel = 'x'\nport = 1", r"\['a'\] .*port"),
        ("[a]\nmodel = 'x'\nmax_num_seqs = 'many'", "'many' is not a whole number"),
        ("[a]\nmodel = 'x'\npreload = 1", "preload: 1 is not true or false"),
        ("[a.b]\nmodel = 'x'", "there is no key `model`"),
        ('["a\\u001b[2J"]\nmodel = "x"', r"name 'a\\x1b\[2J' is empty, or has control"),
        ("[a]\nmodel = 'x'\n[b]\nmodel = 'y'\nadapter = ['a=z']", "are called 'a'"),
        ("[a]\nmodel = " + "[" * 5000, "cannot read"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read(tmp_path, text)


def test_a_folder_has_models_and_other_things(tmp_path: Path) -> None:
    for name in ("chat", "other", ".hidden"):
        tmp_path.joinpath(name).mkdir()
    for name in ("chat", ".hidden"):
        tmp_path.joinpath(name, "config.json").write_text("{}")
    tmp_path.joinpath("small.gguf").touch()
    tmp_path.joinpath("README").touch()
    tmp_path.joinpath("folder.gguf").mkdir()
    tmp_path.joinpath("gone.gguf").symlink_to("nowhere")
    models = read_models(str(tmp_path), {"preload": True})
    assert [(each.names, each.preload) for each in models] == [
        (("chat",), True),
        (("small",), True),
    ]
    assert models[0].config.model.model == str(tmp_path / "chat")
    # No answer could have the name of this file, which is not UTF-8.
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff.gguf")).touch()
    with pytest.raises(InvalidConfig, match=r"'\\udcff' is empty, or has control"):
        read_models(str(tmp_path), {})


def test_words_of_the_command_line_get_the_names_that_one_model_has() -> None:
    sources = ["org/model", "/path/to/folder", "./x.gguf", "pypi:some-wheel==1.0"]
    models = list_models(sources, {"max_num_seqs": 5})
    assert [each.names for each in models] == [
        *(("org/model",), ("folder",), ("x",), ("some-wheel",))
    ]
    assert {each.config.scheduler.max_num_seqs for each in models} == {5}
