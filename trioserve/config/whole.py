"""All options of an embedded engine, and all options of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import InvalidConfig
from .engine import CacheConfig, ParallelConfig, SchedulerConfig, SleepConfig
from .model import ModelConfig, PoolingConfig
from .render import MediaConfig, RenderConfig
from .server import BindConfig, HttpConfig, ProcessConfig
from .several_models import ModelsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an embedded engine; the first argument of open_engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    pooling: PoolingConfig = field(default_factory=PoolingConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    sleep: SleepConfig = field(default_factory=SleepConfig)
    render: RenderConfig = field(default_factory=RenderConfig)
    media: MediaConfig = field(default_factory=MediaConfig)

    def __post_init__(self) -> None:
        is_spread = self.parallel.world_size > 1
        if is_spread and self.model.device not in ("auto", "cpu", "cuda"):
            raise InvalidConfig(
                "device",
                f"{self.model.device} is one device, and each stage needs its own",
            )
        if is_spread and self.sleep.sleep_level == 1:
            raise InvalidConfig(
                "sleep_level",
                "1 is only possible for a model in one process; pipelines and shards have 2",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Options of `trioserve serve`, in the order of --help."""

    bind: BindConfig = field(default_factory=BindConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    models: ModelsConfig = field(default_factory=ModelsConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    http: HttpConfig = field(default_factory=HttpConfig)

    def __post_init__(self) -> None:
        if self.bind.api_processes > 1:
            self._check_http_processes()

    def _check_http_processes(self) -> None:
        """Refuse options that several HTTP processes cannot obey."""
        if not self.process.engine_process:
            raise InvalidConfig(
                "api_processes",
                "more than one share an engine process; let there be one",
            )
        if self.engine.parallel.restart_stages:
            raise InvalidConfig(
                "restart_stages", "is only possible with --api-processes 1"
            )
        if self.http.resume_seconds:
            raise InvalidConfig(
                "resume_seconds",
                "is only possible with --api-processes 1: a client that comes back may meet "
                "another process, which does not have its stream",
            )
        if self.http.response_max_age or self.http.max_background_responses:
            raise InvalidConfig(
                "api_processes",
                "more than one need --response-max-age 0 and --max-background-responses 0: "
                "a client may ask another process than the one that stores its response",
            )
