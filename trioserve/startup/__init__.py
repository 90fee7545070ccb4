"""From a configuration to something that runs.

    open              open_engine and open_pooling_engine: the doors for embedding programs
    frontend          renderer and engine, loaded while the core loads the weights
    source            the model that a configuration names, found before it is loaded
    first_checks      mistakes that are found without the imports of torch and transformers
    core              scheduler, executor and model, in this process or in a pipeline;
                      generation_core and pooling_core build it, limits resolves defaults
    engine_process    the same in a child process of its own, whose work is in engine_host
    stage_process     one stage of a pipeline, in a process of its own
    engine_task       keeps an engine running as long as a block
    server            `trioserve serve`: signals, and the exit code
    models            several models: open_models, and the server's router
    held_memory       the memory of a model, measured and estimated
    one_process, http_server    HTTP beside the load, and inside the engine's block
    supervisor        several HTTP processes, and the engine process for all of them
    http_process      one of them: http_server, and a link to the others
    asgi_app          the app that hypercorn's command serves
    log_lines, stderr   the log on stderr: one line a record, and a reader that may be slow
    plugins           loads logits processors by name
    shortage          turns a lack of memory into one sentence

This is the only room that knows all others; only doors, programs and testing import it.
"""
