"""Reads untrusted files with one tensor, from torch.save or safetensors.

embeds              base64 of such a file -> embeddings in the model's type
reading             the zip file of torch.save, and the format of safetensors
pickle_machine      the pickle inside a file of torch.save
records             the tensors that a file describes, with checks of their bounds

A file never makes Python or torch run its instructions. torch.load, even with
weights_only, allocates as much as the file claims, has written out of bounds for
crafted sparse tensors, and holds the GIL while it reads. A restricted pickle.Unpickler
allocates by claimed sizes, too, and a file can make it set attributes. Here the zip
directory is read with checks of all bounds, and the pickle by a machine that has only
the opcodes of a tensor. The result is a view of the file's bytes, checked to lie inside
them. So reading allocates nothing, whatever the file claims. safetensors is read in the
same way, because its library copies the elements under the GIL.

Unlike torch.load, this room ignores the checksums of the zip. A wrong one harms only
its sender, and TCP and TLS have checksums of their own.
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
