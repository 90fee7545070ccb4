"""Files of one tensor, as strangers send them: torch.save's and safetensors'.

Nothing of Python or torch runs on what a file says. torch.load, also with
weights_only, allocates what the file claims, has written out of bounds for crafted
sparse tensors, and holds the GIL for as long as it reads; a restricted pickle.Unpickler
still allocates by claimed sizes and may be told to set attributes. Here a zip directory
is read by its bounds, and the pickle inside by a machine that knows the opcodes of a
tensor and no others. What comes out is a view of the file's bytes, checked to lie inside
them, so that reading allocates nothing whatever the file claims. safetensors is simple
enough to be read the same way; its library copies the elements under the GIL.

The zip's checksums are left alone, which torch.load does not: a wrong one harms nobody
but its sender, and TCP and TLS have their own.
"""

from .reading import read_tensor_file
from .records import (
    FLOAT_SIZES,
    WRONG_TYPE,
    FiledTensor,
    MalformedTensor,
    SparseTensor,
    StridedTensor,
)

__all__ = [
    "FLOAT_SIZES",
    "WRONG_TYPE",
    "FiledTensor",
    "MalformedTensor",
    "SparseTensor",
    "StridedTensor",
    "read_tensor_file",
]
