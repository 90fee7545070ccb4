"""From a folder to a model on its device.

load                a folder -> LoadedModel
packed              a GGUF file -> LoadedModel, on native kernels
gguf_tensors        the tensors of a GGUF file in a model
gguf_content        the numbers of a GGUF file
plain/              a folder or a GGUF file -> LoadedModel without transformers, if it has a
                    plain Llama
loaded              LoadedModel
outline             the size of a model's KV cache before its weights are read
cache_outline       Outline
facts               all other facts that are known before the weights are read:
  config_file         config.json
  generation_config   generation_config.json
  architecture        the architectures that can be served
  positions           the largest number of tokens that a model can take
  device              the device that a model runs on
weights             build a model and read its weights
weights_memory      do the weights fit into memory?
quantisation        types of weights that are stored smaller than they are computed
dequantise/         quantised weights, made plain numbers when they are read
packing             weights in the layout that this device multiplies fastest
rotary              position encodings that depend on the prompt's length
vision              the kinds of models that take images, and their encoders
"""
