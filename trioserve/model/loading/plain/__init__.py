"""Plain Llamas, loaded without transformers.

To import transformers' models takes longer than all else in the start of a small model. The
native kernels need none of them, only the weights and a dozen facts. Here these come from
config.json, and from safetensors or a GGUF file. Nothing is guessed: a model with any fact
or tensor outside of the plain architecture is left to transformers.

    llama           a folder -> Outline, LoadedModel; of all layers, or of some
    description     config.json of such a model
    tensors         the tensors that it must have
    safetensors_source, gguf_source
                    the files that have them
    parts           the parts of its decoder
    check           compares the kernels' numbers with PyTorch's

tests/model/test_plain.py compares the output with the output of transformers.
"""
