"""Quantised weights, as other tools write them, turned into plain numbers, or kept.

formats      which checkpoints can be dequantised
restore      the arithmetic: the parts of one weight become a matrix
keep         the same for kernels, which read them in the bits that they have
packing      whole numbers of a few bits, many in one of 32
tensors      the weights of a folder, each dequantised when it is read
"""

from .formats import NotDequantised, WeightFormat, find_format
from .tensors import QuantisedWeight, open_tensors

__all__ = [
    "NotDequantised",
    "QuantisedWeight",
    "WeightFormat",
    "find_format",
    "open_tensors",
]
