"""The device of a model: tensors, memory and threads."""
