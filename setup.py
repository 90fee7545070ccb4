"""The native kernels for CPUs, which setup.cfg cannot declare.

One library is built for each instruction set, from the same sources. All are optional: a
machine without a C++ compiler, or with another processor, installs without them. They are
no Python modules, though setuptools builds them as such; trioserve/kernels/library.py
loads them.
"""

import copy
from glob import glob
import os
import platform

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"]
# GCC 12 warns of its own headers for AVX-512, thousands of times.
_COMMON = [
    "-std=c++17",
    "-O3",
    # Without the symbols that Python's own flags ask for.
    "-g0",
    "-pthread",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]
_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": _AVX512,
    "avx512_bf16": [*_AVX512, "-mavx512bf16", "-mavx512vnni"],
}


def list_libraries():
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return []
    return [
        Extension(
            f"trioserve.kernels._{name}",
            sorted(glob("trioserve/kernels/native/*.cpp")),
            depends=sorted(glob("trioserve/kernels/native/*.h")),
            extra_compile_args=[*_COMMON, *flags],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
        for name, flags in _FLAGS.items()
    ]


class BuildLibraries(build_ext):
    """Builds all libraries at the same time, each in a folder of its own."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = True

    def build_extension(self, ext):
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)


setup(ext_modules=list_libraries(), cmdclass={"build_ext": BuildLibraries})
