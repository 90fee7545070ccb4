"""The ways to run the layers of a model: transformers' modules, native kernels, Triton."""
