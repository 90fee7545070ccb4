"""The environment that torchrun sets, and the store that its processes share.

torch.distributed reads the same environment, and the names are the same. torch itself is
imported only when the store is opened, because the command line uses this module and
--help must not wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
import os
from typing import Any

from ...config import ParallelConfig
from ...errors import InvalidConfig, StagesNotMet, shorten_message

LOOPBACK = "127.0.0.1"

# For stages on one machine: gloo would listen at the address of the machine's name.
LOOPBACK_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"}

# torchrun's agent on the first machine serves the store. If a process finds no store, its
# agent is gone, too.
_CONNECT_SECONDS = 60.0

# The wait for another process, which may download a model first. If that process fails,
# the store ends with it, and so does the wait.
_READ_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """A process that torchrun has started.

    Args:
      rank, world_size: number of this process, from 0, and of all processes.
      local_rank, local_world_size: the same among the processes of this machine.
      master_addr, master_port: the address of the store; it is the machine of rank 0.
      num_restarts: how often torchrun has restarted the processes.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int
    num_restarts: int = 0

    @property
    def is_on_one_machine(self) -> bool:
        """True if all processes are on this machine, according to the environment."""
        is_loopback = self.master_addr in (LOOPBACK, "localhost")
        return is_loopback or self.local_world_size == self.world_size

    def check(self, config: ParallelConfig) -> None:
        """Check that each process can be a stage.

        Raises:
          InvalidConfig: an option does not fit.
        """
        num_shards, num_stages = (
            config.tensor_parallel_size,
            config.pipeline_parallel_size,
        )
        if config.world_size != self.world_size and num_shards == 1:
            raise InvalidConfig(
                "pipeline_parallel_size",
                f"is {num_stages}, but torchrun has started "
                f"{self.world_size} processes, and each of them is a stage",
            )
        if config.world_size != self.world_size:
            raise InvalidConfig(
                "tensor_parallel_size",
                f"{num_shards} shards in each of {num_stages} stages are "
                f"{config.world_size} processes, but torchrun has started "
                f"{self.world_size}",
            )
        if config.restart_stages:
            raise InvalidConfig(
                "restart_stages",
                "torchrun starts the stages, and they end with the engine",
            )

    def write(self, key: str, value: str) -> None:
        """Write a value to the store; blocking.

        Raises:
          StagesNotMet: there is no store.
        """
        try:
            self._open_store().set(self._name(key), value)
        except RuntimeError as error:
            raise self._explain(error) from error

    def read(self, key: str) -> str:
        """Wait until another process has written a value, and return it; blocking.

        Raises:
          StagesNotMet: there is no store, or it has ended.
        """
        try:
            store = self._open_store()
            store.set_timeout(timedelta(seconds=_READ_SECONDS))
            value: bytes = store.get(self._name(key))
        except RuntimeError as error:
            raise self._explain(error) from error
        return value.decode()

    def _name(self, key: str) -> str:
        # The store still has the values from before a restart.
        return f"trioserve/{self.num_restarts}/{key}"

    def _open_store(self) -> Any:
        from torch import distributed

        return distributed.TCPStore(  # type: ignore[attr-defined]
            self.master_addr,
            self.master_port,
            is_master=False,
            timeout=timedelta(seconds=_CONNECT_SECONDS),
        )

    def _explain(self, error: Exception) -> StagesNotMet:
        return StagesNotMet(
            f"torchrun's store at {self.master_addr}:{self.master_port} cannot be "
            f"reached; perhaps rank 0 has ended: {shorten_message(error)}"
        )


def find_torchrun(environ: Mapping[str, str] = os.environ) -> Torchrun | None:
    """Return torchrun's description of this process; None if it was started otherwise."""
    # As torch.distributed.is_torchelastic_launched does.
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    return Torchrun(
        rank=int(environ["RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        local_rank=int(environ["LOCAL_RANK"]),
        local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
        master_addr=environ["MASTER_ADDR"],
        master_port=int(environ["MASTER_PORT"]),
        num_restarts=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )
