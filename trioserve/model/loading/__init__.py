"""From a folder to a model on its device.

load                a folder -> LoadedModel
packed              a GGUF file -> LoadedModel, on native kernels
gguf/               the numbers of a GGUF file, and its tensors in a model
plain/              a folder or a GGUF file -> LoadedModel without transformers, if it has a
                    plain Llama
outline             the size of a model's KV cache before its weights are read
files/              the facts in the small files of a model
choose_runtime      the runtime of the layers of a loaded model
pruning             a model without some of its modules: the text part, or a stage
weights             build a model and read its weights
weights_memory      do the weights fit into memory?
dequantise/         quantised weights, made plain numbers when they are read, or kept
keeping             the weights that stay quantised, in a model's modules
adapt/              changes to transformers' modules, so that they run on paged attention
watching            the calls of attention and the states of a model, in one pass
check_modules       do its modules compute on paged attention what they compute alone?
obstacle            can the kernels run a model, by its configuration alone?
preview             the way in which a model would run, by its configuration alone
"""
