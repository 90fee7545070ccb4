"""A model whose layers are spread over processes.

    pipeline      has the stages load their layers, and brings them together
    stages        starts the stages' processes, or waits for those that torchrun started
    rendezvous    the door at which stages of other machines report
    torchrun      the environment that torchrun sets
    executor      PipelineExecutor: submits steps to all stages
    messages      the messages between the engine and a stage

The layers themselves are the concern of model/stages/.
"""
