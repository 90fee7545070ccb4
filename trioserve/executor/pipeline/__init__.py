"""A model whose layers are spread over processes.

    pipeline      lets the stages load their layers, and connects them
    stages        starts the stages, or waits for the stages of torchrun
    rendezvous    accepts the connections of stages that torchrun has started
    torchrun      the environment that torchrun sets
    executor      PipelineExecutor: submits steps to all stages
    adapter_answers
                  the answers of all stages about an adapter
    messages      the messages between the engine and a stage

model/stages/ has the layers themselves.
"""
