"""One of two processes that share a model.

python stage_process.py FOLDER INDEX PORT PORT PORT

As a shard, it exchanges numbers over shared memory and then over gloo. As a stage, it loads its
layers, runs a fixed list of plans, and waits for more. Each time it writes a line of JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
import sys

import torch

from trioserve.config import ModelConfig
from trioserve.model.ends.stage import StageEnds
from trioserve.model.runner import ModelRunner
from trioserve.model.shards.group import StageLost
from trioserve.model.stages import distributed
from trioserve.model.stages.distributed import open_channels
from trioserve.model.stages.links import StageLinks
from trioserve.model.stages.plain import load_plain_stage
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence
from trioserve.types.ids import SequenceId
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan
from trioserve.types.sampling import SamplingParams
from trioserve.types.stage_place import Shard, StagePlace

SIZES: dict[str, int] = {
    "num_blocks": 32,
    "block_size": 4,
    "max_num_seqs": 4,
    "max_model_len": 64,
}


def make_plans() -> list[StepPlan]:
    """Chunks and decodes of three sequences.

    They depend on no sampled token, so each process makes the same plans by itself.
    """
    scheduler = Scheduler(**SIZES, max_num_batched_tokens=8)
    for number, length in enumerate((3, 21, 9)):
        scheduler.add(
            Sequence(
                sequence_id=SequenceId(number),
                prompt_token_ids=tuple(range(3 + number, 3 + number + length)),
                sampling=SamplingParams(temperature=0.0, max_tokens=8),
                seed=number,
                arrival=number,
            )
        )
    plans = []
    while (plan := scheduler.schedule()) is not None:
        plans.append(plan)
        sampled = ((5,),) * plan.num_sampled
        scheduler.update(plan, StepResult(step_id=plan.step_id, sampled=sampled))
    return plans


def main(folder: str, index: str, *ports: str) -> None:
    torch.set_num_threads(1)
    shard = Shard(index=int(index), count=2)
    exchange(shard, int(ports[0]))
    # As on several machines.
    distributed.share_memory = lambda *others: None
    exchange(shard, int(ports[1]), notices_ends=True)
    run_stage(Path(folder), StagePlace(stage=int(index), num_stages=2), int(ports[2]))


def exchange(shard: Shard, port: int, *, notices_ends: bool = False) -> None:
    """Exchange numbers with the other shard.

    Args:
      notices_ends: the first shard leaves, and the other one notices.
    """
    place, device = StagePlace(stage=0, num_stages=1, shard=shard), torch.device("cpu")
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
        if notices_ends and place.rank == 1:
            try:
                group.sum(numbers)
            except StageLost as error:
                print(json.dumps(str(error)), flush=True)


def run_stage(folder: Path, place: StagePlace, port: int) -> None:
    source = folder, ModelConfig(device="cpu")
    loaded = load_plain_stage(*source, name="tiny", place=place)
    if loaded is None:
        # Imported here, because it needs transformers.
        from trioserve.model.stages.loading import load_stage

        loaded = load_stage(*source, name="tiny", place=place)
    with open_channels(
        loaded.place,
        loaded.device,
        host="127.0.0.1",
        port=port,
        timeout_seconds=60.0,
    ) as channels:
        links = StageLinks(loaded, channels)
        runner = ModelRunner(loaded, ends=StageEnds(links), **SIZES)
        runner.warm_up()
        *plans, last = make_plans()
        results = [runner.step(plan).sampled for plan in plans]
        print(json.dumps(results), flush=True)
        sys.stdin.readline()
        try:
            runner.step(last)
        except StageLost as error:
            print(error, flush=True)


if __name__ == "__main__":
    main(*sys.argv[-5:])
