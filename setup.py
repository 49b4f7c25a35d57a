"""The wheel: csrc once as a static library, each pyext/*.pyx linked to it.

Metadata and tool settings live in pyproject.toml; this file holds what only code can say: the
mapping of folders to import names, the two globs, and the compiler flags.

ONCELOG_SANITIZE=address,undefined   build library and extensions with these sanitizers
ONCELOG_ANNOTATE=1                   also write Cython's annotated HTML into build/annotate
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from fnmatch import fnmatch
from glob import glob
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SANITIZE = os.environ.get("ONCELOG_SANITIZE", "")
ANNOTATE = os.environ.get("ONCELOG_ANNOTATE", "") not in ("", "0")

# The platform and the sanitizers name the folder, so that no build ever picks up another one's
# objects: distutils compares times only, never flags.
BUILD_BASE = f"build/{'sanitize-' + SANITIZE.replace(',', '-') if SANITIZE else 'native'}"
PLATFORM = f"{sysconfig.get_platform()}-{sysconfig.get_config_var('SOABI')}"

C_SOURCES = sorted(glob("csrc/*.c"))
C_HEADERS = sorted(glob("csrc/*.h"))
PYX_SOURCES = sorted(glob("pyext/*.pyx"))

# No -march: csrc picks its instruction set at run time, so a wheel runs on any CPU of its kind.
# No -g, which Python's own flags ask for: a quarter of the compiler's time, and most of a wheel.
FLAGS = ["-O3", "-g0", "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"]
LINK_FLAGS: list[str] = []
if SANITIZE:
    FLAGS += [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all"]
    FLAGS += ["-fno-omit-frame-pointer", "-O1", "-g"]
    LINK_FLAGS += [f"-fsanitize={SANITIZE}"]
# What Cython generates is not ours to tidy.
EXTENSION_FLAGS = [*FLAGS, "-Wno-unused-parameter", "-Wno-missing-field-initializers"]


class BuildLibrary(build_clib):
    """csrc as one static library, kept between builds."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = self.build_clib = f"{BUILD_BASE}/csrc-{PLATFORM}"


class BuildExtensions(build_ext):
    """The Cython modules: translated just before they are compiled, on all cores."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.inplace = False  # pyext holds sources; an editable install has a folder of its own

    def run(self) -> None:
        if not self.editable_mode:
            super().run()
            return
        # An editable install builds in a folder that is thrown away, which would compile
        # everything again for every change. Build in one that stays, and copy the result.
        self.build_temp = f"{BUILD_BASE}/temp-{PLATFORM}"
        target, self.build_lib = self.build_lib, f"{BUILD_BASE}/lib-{PLATFORM}"
        super().run()
        built, self.build_lib = self.build_lib, target
        for extension in self.extensions:
            name = self.get_ext_filename(extension.name)
            (Path(target) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(built) / name, Path(target) / name)

    def build_extensions(self) -> None:
        import numpy as np
        from Cython.Build import cythonize

        # The names are given here because the folder is not called as the package is.
        translated = cythonize(
            [Extension(one.name, list(one.sources)) for one in self.extensions],
            nthreads=os.cpu_count() or 1,
            include_path=["pyext"],
            build_dir="build/annotate" if ANNOTATE else "build/cython",
            compiler_directives={"language_level": 3},
            annotate=ANNOTATE,
            force=ANNOTATE,
            quiet=True,
        )
        sources = {one.name: one.sources for one in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
            extension.include_dirs.append(np.get_include())
        self.parallel = os.cpu_count()
        super().build_extensions()


# What needs the checkout: a broker's jars, hours, or pytest's own way of finding benchmarks.
NOT_SHIPPED = ("conftest", "kafka*", "*soak")


class BuildModules(build_py):
    """The Python modules; of the benchmarks those that `oncelog bench` runs."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        if package != "oncelog.benches":
            return found
        return [one for one in found if not any(fnmatch(one[1], name) for name in NOT_SHIPPED)]


def extension(source: str) -> Extension:
    """The module that one .pyx becomes."""
    return Extension(
        f"oncelog._native.{Path(source).stem}",
        [source],
        include_dirs=["csrc", "pyext"],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=EXTENSION_FLAGS,
        extra_link_args=LINK_FLAGS,
        # Linked statically, so a change anywhere in csrc is a change of every module.
        depends=[*C_SOURCES, *C_HEADERS, *sorted(glob("pyext/*.pxd"))],
    )


LIBRARY: dict[str, Any] = {
    "sources": C_SOURCES,
    "include_dirs": ["csrc"],
    "cflags": FLAGS,
    "obj_deps": {"": C_HEADERS},
}

if __name__ == "__main__":  # not in the processes that translate, where they begin anew
    setup(
        package_dir={
            "oncelog": "engine",
            "oncelog._native": "pyext",
            "oncelog.benches": "benches",  # in a checkout also `benches`, which is the same files
            "oncelog.spark": "spark_udf",
            "pyspark_oncelog": "spark_udf/pyspark_oncelog",  # the name that Spark looks for
        },
        packages=[
            "oncelog",
            *(f"oncelog.{room}" for room in find_packages("engine")),
            "oncelog._native",
            "oncelog.benches",
            "oncelog.spark",
            "pyspark_oncelog",
        ],
        package_data={
            "oncelog": ["py.typed"],
            "oncelog._native": ["*.pyi"],
            "oncelog.benches": ["targets.toml"],
        },
        libraries=[("oncelog_c", LIBRARY)],
        ext_modules=[extension(source) for source in PYX_SOURCES],
        cmdclass={
            "build_clib": BuildLibrary,
            "build_ext": BuildExtensions,
            "build_py": BuildModules,
        },
        options={"build": {"build_base": BUILD_BASE}},
    )
