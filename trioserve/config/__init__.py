"""Every option: one field is one flag and one row of a table in docs/options.rst.

    model, engine, render, server    the options, by the room that they concern
    several_models, models           several models, and the file or folder that names them
    whole                            all options of an engine, and all of a server
    remote                           the address of a server that a command talks to
    options                          the name, type, default and meaning of each option
    flags, help                      the command line, made from the fields
    keywords                         the spelling of options in programs
    foreign                          names that other servers give to these options
    checks                           checks of values

Values that depend on the model or the machine are *resolved* into new objects later.
Nothing is written back, and nothing is read from the environment.
"""

from .checks import FilePath, check_plain_file, parse_bytes
from .engine import (
    CacheConfig,
    ParallelConfig,
    SchedulerConfig,
    SchedulingPolicy,
    SleepConfig,
)
from .model import DEFAULT_MODEL, DEFAULT_MODEL_REPETITION, ModelConfig, PoolingConfig
from .models import ServedModel, check_names, list_models, read_models
from .options import Option, build_config, list_changes, list_options, reset_options
from .remote import RemoteConfig, find_base_path
from .render import MediaConfig, RenderConfig
from .server import STREAM_LOG_BYTES, BindConfig, HttpConfig, ProcessConfig
from .several_models import ModelsConfig
from .whole import EngineConfig, ServeConfig

__all__ = [
    "STREAM_LOG_BYTES",
    "DEFAULT_MODEL",
    "DEFAULT_MODEL_REPETITION",
    "BindConfig",
    "CacheConfig",
    "EngineConfig",
    "FilePath",
    "HttpConfig",
    "MediaConfig",
    "ModelConfig",
    "ModelsConfig",
    "Option",
    "ParallelConfig",
    "PoolingConfig",
    "ProcessConfig",
    "RemoteConfig",
    "RenderConfig",
    "SchedulerConfig",
    "SchedulingPolicy",
    "ServeConfig",
    "ServedModel",
    "SleepConfig",
    "build_config",
    "check_names",
    "check_plain_file",
    "find_base_path",
    "list_changes",
    "reset_options",
    "list_models",
    "list_options",
    "parse_bytes",
    "read_models",
]
