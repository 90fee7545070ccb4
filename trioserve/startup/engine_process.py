"""The engine process: `python -m trioserve.startup.engine_process DESCRIPTOR PARENT [torch]`.

open.py starts it, or the command does so before it imports HTTP. With `torch` the process loads
a model itself, and imports torch while its first message is on the way. The work is in
engine_host.py.
"""

from __future__ import annotations

from functools import partial
import gc
from importlib import import_module
import sys
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from ..model.device.torch_library import load_torch_library

if TYPE_CHECKING:
    from ..config import EngineConfig

ENGINE_PROCESS: Final = "trioserve.startup.engine_process"

_TORCH: Final = "torch"

# Packages and modules with parts in C that this process needs in any case.
_IN_C: Final = ("json", "mmap", "msgspec", "numpy", "resource", "trio")


def list_arguments(config: EngineConfig) -> tuple[str, ...]:
    """Return the arguments of an engine process, besides those of every child."""
    # Where stages and shards load the model, the engine process does without torch.
    return () if config.parallel.world_size > 1 else (_TORCH,)


def main() -> None:
    """Serve the parent until it ends."""
    # Nearly all objects of modules stay; see prepare_interpreter.
    gc.disable()
    has_imported = Event()
    importing = None
    if _TORCH in sys.argv[3:]:
        # The linker loads one library at a time, and is busy with torch's next.
        for name in _IN_C:
            import_module(name)
        # A daemon, because nothing waits for it if the parent ends.
        importing = Thread(target=_import_torch, args=(has_imported,), daemon=True)
        importing.start()
    # Imported here, beside that thread.
    from ..engine.process.messages import ToEngine
    from ..processes import run_as_child
    from .engine_host import host_engine

    has_imported.set()
    run_as_child(partial(host_engine, importing=importing), receives=ToEngine)


def _import_torch(has_imported: Event) -> None:
    """Import torch.

    Args:
      has_imported: set when the other imports are done, which torch's would delay.
    """
    load_torch_library()
    has_imported.wait()
    import_module("torch")
    from ..processes.interpreter import keep_imports

    keep_imports()


if __name__ == "__main__":
    main()
