"""One shard's exchanges in a process of its own.

python exchange_process.py INDEX PORT PORT

Over shared memory first, and then over gloo.
"""

from __future__ import annotations

import json
import sys

import torch

from trioserve.model.shards.group import StageLost
from trioserve.model.stages import distributed
from trioserve.model.stages.distributed import open_channels
from trioserve.types.stage_place import Shard, StagePlace


def main(index: str, *ports: str) -> None:
    place = StagePlace(stage=0, num_stages=1, shard=Shard(index=int(index), count=2))
    # Memory tells nothing of a process that has ended: the engine ends the others.
    exchange(place, int(ports[0]))
    # As on several machines.
    distributed.share_memory = lambda *others: None
    exchange(place, int(ports[1]))


def exchange(place: StagePlace, port: int) -> None:
    device = torch.device("cpu")
    with open_channels(
        place, device, host="127.0.0.1", port=port, timeout_seconds=60.0
    ) as channels:
        group = channels.shards
        assert group is not None
        group.wait_for_all()
        numbers = torch.arange(4.0) + 10 * place.rank
        group.sum(numbers)
        halves = torch.full((2, 3), 1.0 + place.rank, dtype=torch.bfloat16)
        group.sum(halves[:, :2])
        # Of 131 tokens, the first has 66 and the other 65.
        logits = torch.full((2, 66 - place.rank), float(place.rank))
        joined = group.join_logits(logits, 131)
        tokens = torch.tensor([7, 8, 9]) * (1 - place.rank)
        group.broadcast(tokens)
        assert group.agree(True, device)
        assert not group.agree(place.rank == 0, device)
        found = numbers, halves.float(), joined.sum(dim=1), tokens
        print(json.dumps([each.tolist() for each in found]), flush=True)
        sys.stdin.readline()
        try:
            group.sum(numbers)
        except StageLost as error:
            print(error, flush=True)


if __name__ == "__main__":
    main(*sys.argv[-3:])
