"""Files of adapters that are wrong are refused, with the name of the field or the tensor."""

from __future__ import annotations

from collections.abc import Mapping
import json
import os
from pathlib import Path
import shutil
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch

from trioserve.errors import InvalidAdapter
from trioserve.model.adapters.config import read_config
from trioserve.model.adapters.part import ModelPart
from trioserve.model.adapters.read import AdapterReader
from trioserve.types.adapter import AdapterFacts, AdapterSource
from trioserve.weights import read_gguf_adapter

SIZE, RANK = 6, 2
MODULE = "model.layers.{}.self_attn.{}_proj"
PREFIX = "base_model.model.model.layers"
QUERY = f"{PREFIX}.0.self_attn.q_proj"


class Layers:
    """Layers with products of two layers, whose weights are ones."""

    shapes = {
        MODULE.format(layer, name): (SIZE, SIZE) for layer in (0, 1) for name in "qkvo"
    }

    def read(self, name: str) -> torch.Tensor:
        return torch.ones(SIZE, SIZE)

    def pack(self, changes: Any) -> Any: ...
    def add(self, number: int, packed: Any) -> None: ...
    def remove(self, number: int) -> None: ...


READER = AdapterReader(
    ModelPart(Layers(), {}, has_all=True),
    architecture="LlamaForCausalLM",
    head_dim=SIZE,
    read_gguf=read_gguf_adapter,
)


def write(
    folder: Path,
    fields: Mapping[str, object] = {},
    tensors: Mapping[str, torch.Tensor | None] = {},
) -> Path:
    """Write an adapter of one module, with other fields and tensors."""
    config = {"peft_type": "LORA", "r": RANK, "target_modules": ["q_proj"]} | fields
    (folder / "adapter_config.json").write_text(json.dumps(config))
    own = {
        f"{QUERY}.lora_A.weight": torch.ones(RANK, SIZE),
        f"{QUERY}.lora_B.weight": torch.ones(SIZE, RANK),
    } | tensors
    kept = {name: tensor for name, tensor in own.items() if tensor is not None}
    save_file(kept, folder / "adapter_model.safetensors")
    return folder


def read(folder: Path) -> AdapterFacts:
    source = AdapterSource(number=1, name="a", path=str(folder))
    return READER.read(source)[0]


def explain(folder: Path) -> str:
    with pytest.raises(InvalidAdapter) as caught:
        read(folder)
    message = str(caught.value)
    assert message.startswith("cannot load the adapter 'a': ")
    assert caught.value.reason in message
    return caught.value.reason


REFUSED: dict[str, dict[str, object]] = {
    "peft_type is 'IA3'": {"peft_type": "IA3"},
    "Expected `int`, got `str` - at `$.r`": {"r": "8"},
    "r must be from 1": {"r": 0},
    "rank_pattern must be from 1": {"rank_pattern": {"q_proj": -1}},
    "lora_alpha must be finite": {"lora_alpha": float("inf")},
    "alpha_pattern must be finite": {"alpha_pattern": {"q_proj": float("nan")}},
    "bias is not supported": {"bias": "all"},
    "lora_bias is not supported": {"lora_bias": True},
    "modules_to_save is not supported": {"modules_to_save": ["lm_head"]},
    "alora_invocation_tokens is not supported": {"alora_invocation_tokens": [1]},
    "trainable_token_indices is not supported": {"trainable_token_indices": [5]},
    "layer_replication is not supported": {"layer_replication": [[0, 1]]},
    "use_qalora is not supported": {"use_qalora": True},
    "use_bdlora is not supported": {"use_bdlora": {"nblocks": 2}},
    "to_come is not supported": {"to_come": 1},
    "init_lora_weights is 'pissa_niter_4'": {"init_lora_weights": "pissa_niter_4"},
    "init_lora_weights is 'olora'": {"init_lora_weights": "olora"},
    "init_lora_weights is 'corda'": {"init_lora_weights": "corda"},
    "init_lora_weights is 'loftq'": {"init_lora_weights": "loftq"},
    "target_modules does not name it": {"target_modules": ["k_proj"]},
    "exclude_modules names it": {"exclude_modules": ["q_proj"]},
    "layers_to_transform does not name its layer": {"layers_to_transform": [1]},
    "a pattern in target_modules is wrong": {"target_modules": "(q_proj"},
    "a pattern in rank_pattern takes too long": {
        "rank_pattern": {r"((\w|.)+)+(?<!j)": 2}
    },
    "alpha_pattern has more than 1000 patterns": {
        "alpha_pattern": {f"{number}?": 1 for number in range(1001)}
    },
    "q_proj.lora_magnitude_vector is missing": {"use_dora": True},
    "q_proj.lora_A has the shape (2, 6)": {"r": 3},
}


def test_fields_are_refused_by_name(tmp_path: Path) -> None:
    for expected, fields in REFUSED.items():
        assert expected in explain(write(tmp_path, fields)), expected


def test_fields_that_compute_nothing_are_taken(tmp_path: Path) -> None:
    fields = {
        *("auto_mapping", "corda_config", "layer_replication", "to_come"),
        *("trainable_token_indices", "use_bdlora", "modules_to_save"),
    }
    taken = {"fan_in_fan_out": True, "lora_dropout": 0.1, "init_lora_weights": "eva"}
    assert read(write(tmp_path, dict.fromkeys(fields) | taken)).rank == RANK


def test_tensors_are_refused_by_name(tmp_path: Path) -> None:
    ones = torch.ones
    for expected, tensors in {
        f"{QUERY}.lora_C.weight is not supported": {f"{QUERY}.lora_C.weight": ones(1)},
        "the tensor lm_head.weight is not supported": {"lm_head.weight": ones(1)},
        f"{PREFIX}.7.self_attn.q_proj.lora_A belongs to no module": {
            f"{PREFIX}.7.self_attn.q_proj.lora_A.weight": ones(RANK, SIZE)
        },
        "k_proj, but target_modules does not": {
            f"{PREFIX}.0.self_attn.k_proj.lora_A.weight": ones(RANK, SIZE)
        },
        "self_attn.q_proj.lora_B is missing": {f"{QUERY}.lora_B.weight": None},
        "self_attn.q_proj.lora_B has the shape (6, 3)": {
            f"{QUERY}.lora_B.weight": ones(SIZE, RANK + 1)
        },
        "lora_A.weight has numbers that are not finite": {
            f"{QUERY}.lora_A.weight": ones(RANK, SIZE) / 0
        },
        "lora_A.weight has numbers of the type torch.int64": {
            f"{QUERY}.lora_A.weight": ones(RANK, SIZE).long()
        },
        "lora_magnitude_vector, but use_dora is false": {
            f"{QUERY}.lora_magnitude_vector": ones(SIZE)
        },
        "lora_embedding_A is not supported": {
            f"{QUERY}.lora_embedding_A": ones(RANK, SIZE)
        },
        "has no tensors": dict.fromkeys(
            (f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight")
        ),
    }.items():
        assert expected in explain(write(tmp_path, tensors=tensors)), expected


def test_a_magnitude_over_a_weight_of_zeros_is_refused(tmp_path: Path) -> None:
    # The change takes away the model's own weight.
    tensors = {
        f"{QUERY}.lora_A.weight": torch.ones(RANK, SIZE),
        f"{QUERY}.lora_B.weight": -torch.ones(SIZE, RANK),
        f"{QUERY}.lora_magnitude_vector": torch.ones(SIZE),
    }
    fields = {"use_dora": True, "lora_alpha": 1}
    assert "magnitude_vector divides by zero" in explain(
        write(tmp_path, fields, tensors)
    )


def test_an_adapter_for_which_the_device_has_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(self: Layers, changes: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 MiB")

    monkeypatch.setattr(Layers, "pack", pack)
    assert explain(write(tmp_path)) == "the device has too little memory left for it"


def test_files_that_are_not_there_or_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"
    assert "adapter_config.json: No such file" in explain(tmp_path / "missing")
    write(tmp_path)
    whole = path.read_bytes()
    for length in (0, 5, 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "adapter_model.safetensors is damaged" in explain(tmp_path)
    save_file({"x" * 10_000: torch.zeros(1)}, path)
    assert len(explain(tmp_path)) < 1000
    # The tensors of a whole file would be decoded at once.
    header = b'{"a":{},' * 150_000
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert "adapter_model.safetensors has more than 131072 tensors" in explain(tmp_path)
    path.write_bytes(b"\xff" * 8 + whole)
    assert "adapter_model.safetensors is damaged" in explain(tmp_path)
    path.write_bytes(whole)
    os.truncate(path, 2**40)
    assert "adapter_model.safetensors has more than" in explain(tmp_path)
    path.unlink()
    assert "adapter_model.safetensors: No such file" in explain(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    assert "adapter_model.bin may run code" in explain(tmp_path)
    os.mkfifo(path)
    assert "adapter_model.safetensors is not a file" in explain(tmp_path)
    for content in (b"", b"[]", b"{", b"[" * 10_000, b"\xff"):
        (tmp_path / "adapter_config.json").write_bytes(content)
        assert explain(tmp_path).startswith("adapter_config.json is wrong: ")


def test_links_stay_in_the_folder_or_lead_to_blobs_of_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / "abc"
    folder.mkdir(parents=True)
    write(folder)
    for home, is_taken in ((tmp_path / "blobs", True), (tmp_path / "other", False)):
        home.mkdir()
        target = shutil.move(folder / "adapter_model.safetensors", home / "0")
        (folder / "adapter_model.safetensors").symlink_to(target)
        if is_taken:
            assert read(folder).rank == RANK
        else:
            assert "is a link out of its folder" in explain(folder)
        shutil.move(target, home / "moved")
        (folder / "adapter_model.safetensors").unlink()
        shutil.copy(home / "moved", folder / "adapter_model.safetensors")


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    first = read(write(tmp_path)).digest
    assert read(write(tmp_path)).digest == first
    assert read(write(tmp_path, {"lora_alpha": 9})).digest != first
    changed = {f"{QUERY}.lora_B.weight": torch.full((SIZE, RANK), 2.0)}
    assert read(write(tmp_path, tensors=changed)).digest != first


@pytest.mark.parametrize("home", ["model.language_model", "language_model.model"])
def test_the_text_model_of_a_model_with_images_is_found(
    tmp_path: Path, home: str
) -> None:
    write(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    moved = {
        name.replace("base_model.model.model", f"base_model.model.{home}"): tensor
        for name, tensor in load_file(path).items()
    }
    save_file(moved, path)
    assert read(tmp_path).rank == RANK
    save_file({n.replace("layers", "vision.layers"): t for n, t in moved.items()}, path)
    assert "belongs to no module" in explain(tmp_path)


def test_patterns_of_ranks_name_the_ends_of_modules() -> None:
    module = "model.layers.1.q_proj"
    for pattern, is_found in {
        "q_proj": True,
        "1.q_proj": True,
        module: True,
        "layers.1.q.proj": True,
        "(q|k)_proj": True,
        "proj": False,
        "2.q_proj": False,
        f"x.{module}": False,
    }.items():
        data = json.dumps({"peft_type": "LORA", "r": 8, "rank_pattern": {pattern: 3}})
        config = read_config(data.encode())
        assert config.find_rank(module) == (3 if is_found else 8), pattern
