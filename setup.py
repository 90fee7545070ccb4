"""What setup.cfg cannot declare: the native kernels for CPUs, and the long description.

One library is built for each instruction set, from the same sources. All are optional: a
machine without a C++ compiler, or with another processor, installs without them. They are
no Python modules, though setuptools builds them as such; trioserve/kernels/library.py
loads them.
"""

from concurrent.futures import ThreadPoolExecutor
import copy
from glob import glob
from itertools import chain
import json
import os
import platform
import re

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_NATIVE = "trioserve/kernels/native"

# GCC 12 warns of its own headers for AVX-512, thousands of times.
_QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]


def list_libraries():
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return []
    # Tests and benches compile with the same flags.
    with open(f"{_NATIVE}/flags.json", encoding="utf-8") as file:
        sets = json.load(file)
    # Symbols are hidden, because the loader gives all libraries of a process the inline
    # variables of the first one (STB_GNU_UNIQUE).
    flags = sets.pop("all")
    # -g0: without the symbols that Python's own flags ask for.
    flags += ["-g0", "-pthread", *_QUIET]
    return [
        Extension(
            f"trioserve.kernels._{name}",
            sorted(glob(f"{_NATIVE}/*.cpp")),
            depends=sorted(glob(f"{_NATIVE}/*.h")) + [f"{_NATIVE}/flags.json"],
            extra_compile_args=flags + own,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
        for name, own in sets.items()
    ]


class BuildLibraries(build_ext):
    """Builds all libraries at the same time, each in a folder of its own."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = len(self.extensions)

    def build_extensions(self):
        compile_files = self.compiler.compile
        # The files of all libraries share the cores, so that none is idle before the end.
        with ThreadPoolExecutor(os.cpu_count()) as cores:

            def compile_at_once(sources, **options):
                each = cores.map(
                    lambda source: compile_files([source], **options), sources
                )
                return list(chain.from_iterable(each))

            self.compiler.compile = compile_at_once
            super().build_extensions()

    def build_extension(self, ext):
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)


def describe():
    """Return README for package indexes, where its links to files lead nowhere.

    The project has no public address to which they could lead, so they become the names of
    the files, which the sdist has.
    """
    with open("README.rst", encoding="utf-8") as file:
        return re.sub(r"`[^`<]+\s<([\w./-]+)>`_", r"``\1``", file.read())


setup(
    ext_modules=list_libraries(),
    cmdclass={"build_ext": BuildLibraries},
    long_description=describe(),
)
