"""Builds one py3-none wheel that holds the C library: compiled by CMake from the source tree two folders up, or
the one that NHOOD_LIBRARY names. Nothing is written into the source tree but build/."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCE = Path(__file__).resolve().parents[2]


def version() -> str:
    header = (SOURCE / "include" / "nhood.h").read_text()
    return ".".join(
        re.search(rf"^#define NHOOD_VERSION_{part} (\d+)", header, re.MULTILINE).group(1)
        for part in ("MAJOR", "MINOR", "PATCH")
    )


def build_library(folder: str) -> Path:
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DNHOOD_TESTS=OFF", "-DNHOOD_TOOL=OFF", "-DNHOOD_EXAMPLES=OFF"]
    subprocess.check_call(["cmake", "-S", SOURCE, "-B", folder, *options])
    jobs = str(len(os.sched_getaffinity(0)))
    subprocess.check_call(["cmake", "--build", folder, "--target", "nhood", "--parallel", jobs])
    return Path(folder, "libnhood.so")


class BuildWithLibrary(build_py):
    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)  # what an older version left is not packed
        super().run()
        package = Path(self.build_lib, "nhood")
        shutil.copyfile(SOURCE / "LICENSE", package / "LICENSE")
        with tempfile.TemporaryDirectory() as folder:
            library = os.environ.get("NHOOD_LIBRARY") or build_library(folder)
            shutil.copyfile(library, package / "libnhood.so")


class Python3Wheel(bdist_wheel):
    """The library ties the wheel to a platform, but to no version or ABI of Python."""

    def get_tag(self) -> tuple:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


scratch = SOURCE / "build" / "python"
scratch.mkdir(parents=True, exist_ok=True)
setup(
    version=version(),
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": Python3Wheel},
    options={"build": {"build_base": str(scratch)}, "egg_info": {"egg_base": str(scratch)}},
)
