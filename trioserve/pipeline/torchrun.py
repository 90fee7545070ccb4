"""What torchrun tells a process that it has started, and the store that all of them share.

The names are torch.distributed's, which reads the same environment. torch itself is
imported only where the store is opened: the command line asks here, and --help must not
wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
import os
from typing import Any

from ..config import ParallelConfig
from ..errors import InvalidConfig, StagesNotMet

LOOPBACK = "127.0.0.1"

# For stages of one machine: gloo would listen at the address that its name has.
LOOPBACK_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"}

# torchrun has the first machine's agent serve the store, so a process that finds none has
# lost its agent, too.
_CONNECT_SECONDS = 60.0

# For what another process writes. It may download a model first; if it fails, the store
# goes with it and the wait ends.
_READ_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """One of the processes that torchrun has started; all of them have other ranks.

    Args:
      rank, world_size: which of how many; from 0.
      local_rank, local_world_size: the same among those of this machine.
      master_addr, master_port: where the store is; the machine of rank 0 has the address.
      num_restarts: how often torchrun has started them again.
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
        """All are, for all that can be told: nobody else reaches a loopback address."""
        is_loopback = self.master_addr in (LOOPBACK, "localhost")
        return is_loopback or self.local_world_size == self.world_size

    def check(self, config: ParallelConfig) -> None:
        """Let each process be a stage.

        Raises:
          InvalidConfig
        """
        if config.pipeline_parallel_size != self.world_size:
            raise InvalidConfig(
                "pipeline_parallel_size",
                f"is {config.pipeline_parallel_size}, but torchrun has started "
                f"{self.world_size} processes, and each of them is a stage",
            )
        if config.restart_stages:
            raise InvalidConfig(
                "restart_stages",
                "it is torchrun that starts the stages, and they end with the engine",
            )

    def write(self, key: str, value: str) -> None:
        """Put something into the store; blocking.

        Raises:
          StagesNotMet: there is no store.
        """
        try:
            self._open_store().set(self._name(key), value)
        except RuntimeError as error:
            raise self._explain(error) from error

    def read(self, key: str) -> str:
        """Wait for what another process writes; blocking.

        Raises:
          StagesNotMet: there is no store, or none any more.
        """
        try:
            store = self._open_store()
            store.set_timeout(timedelta(seconds=_READ_SECONDS))
            value: bytes = store.get(self._name(key))
        except RuntimeError as error:
            raise self._explain(error) from error
        return value.decode()

    def _name(self, key: str) -> str:
        # What was written before a restart is still there.
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
        # What follows the first line is a trace of C++.
        first_line = (str(error).splitlines() or [""])[0]
        return StagesNotMet(
            f"torchrun's store at {self.master_addr}:{self.master_port} cannot be "
            f"asked, or not any more, because rank 0 has ended: {first_line}"
        )


def find_torchrun(environ: Mapping[str, str] = os.environ) -> Torchrun | None:
    """Return what torchrun says; None if it has not started this process."""
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
