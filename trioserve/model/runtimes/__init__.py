"""The ways to run the layers of a model: transformers' modules, native kernels, Triton.

description   the layers of a decoder, as native/ and fused/ read them
recognise/    finds the description among transformers' modules
modules/      runs transformers' modules
native/       runs the native kernels, on a CPU
fused/        runs Triton's kernels, on a GPU
choice        the choice between kernels and modules; consensus makes it one for all shards
loaded        LoadedModel
stored_weights  modules whose weights stay in fewer bits than 16
quantise_parts  weights of eight bits in modules, before kernels for GPUs take them
named_products  the names of the products that adapters change
vision        the kinds of models that read images, and their encoders
deepstack     vectors of images that are added behind the first layers
"""
