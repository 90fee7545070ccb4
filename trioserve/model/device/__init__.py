"""The device of a model: tensors, threads, and numbers on their way to it."""
