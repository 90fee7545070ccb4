"""States that layers keep beside keys and values: one for each sequence, of a fixed size.

spec      the states of a model's layers, and their bytes
modules   transformers' modules with states, which run on the rows of a step
convolution  their convolutions in 16 bits, on CPUs
pool      the states of all slots, in the device's memory
step      the rows of one step, and their states

The kernels (runtimes/native) keep the states of their layers themselves.
"""
