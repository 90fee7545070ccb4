"""The device of a model: tensors and threads."""
