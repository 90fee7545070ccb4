"""Native kernels for CPUs: the layers of a model, in C++ below Python.

    library     finds the library for this machine, and declares its functions
    structs     the structures that those functions read, as in native/*.h
    stored      weights in fewer bits than 16, as kernels here and in triton/ read them
    restore     dequantises them
    threads     how many threads this process may run at once
    native/     the sources; one shared library is built for each instruction set

The libraries know numbers and pointers. They know no tensors, models or requests:
model/runtimes/native/ fills in the structures from a model's modules. Door: `library.open_library`.

The libraries are called through ctypes, with pointers and sizes. So they match no ABI but
C's: one build serves every version of Python and torch, and a call releases the
interpreter's lock.
"""
