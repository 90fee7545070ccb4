"""One stage in its own process: loads, runs a fixed list of plans, waits for more.

python stage_process.py FOLDER STAGE NUM_STAGES PORT
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
from trioserve.model.stages.distributed import open_channels
from trioserve.model.stages.links import StageLinks
from trioserve.model.stages.plain import load_plain_stage
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence
from trioserve.types.ids import SequenceId
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan
from trioserve.types.sampling import SamplingParams
from trioserve.types.stage_place import StagePlace

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


def main(folder: str, stage: str, num_stages: str, port: str) -> None:
    torch.set_num_threads(1)
    source = Path(folder), ModelConfig(device="cpu")
    place = StagePlace(stage=int(stage), num_stages=int(num_stages))
    loaded = load_plain_stage(*source, name="tiny", place=place)
    if loaded is None:
        # Imported here, because it needs transformers.
        from trioserve.model.stages.loading import load_stage

        loaded = load_stage(*source, name="tiny", place=place)
    with open_channels(
        loaded.place,
        loaded.device,
        host="127.0.0.1",
        port=int(port),
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
    main(*sys.argv[-4:])
