"""Builds one py3-none wheel that holds the C library: compiled by CMake from the C sources, with what CMAKE_ARGS adds,
or the one that NHOOD_LIBRARY names. The C sources are two folders up, or in a source distribution in its folder
source/. Nothing is written into the source tree."""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "source" if (HERE / "source").exists() else HERE.parents[1]
SOURCE_PARTS = ("CMakeLists.txt", "LICENSE", "bindings/python/native", "cmake", "include", "src", "tools/nhood")
BESIDE = (  # the library, where they have been built
    "nhood_quick.abi3.so",  # where Python's headers are
    "nhood_xla.so",
    "nhood_xla.dll",
)
TOOLS = ("nhood", "nhood.exe")


def version() -> str:
    header = (SOURCE / "include" / "nhood.h").read_text()
    return ".".join(
        re.search(rf"^#define NHOOD_VERSION_{part} (\d+)", header, re.MULTILINE).group(1)
        for part in ("MAJOR", "MINOR", "PATCH")
    )


def library_name(made: str = "") -> str:
    """What the library's file is called: as `made` is, if that is given, else as this machine names it."""
    return "nhood.dll" if made.endswith(".dll") or (not made and os.name == "nt") else "libnhood.so"


def build_library(folder: str) -> Path:
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS_RELEASE=-O2 -DNDEBUG"]  # as the project's own builds
    options += ["-DNHOOD_TESTS=OFF", "-DNHOOD_TOOL=ON", "-DNHOOD_EXAMPLES=OFF", "-DNHOOD_WHEEL=ON"]
    options += [f"-DPython3_EXECUTABLE={sys.executable}"]
    if not shutil.which("make") and shutil.which("ninja"):
        options += ["-G", "Ninja"]
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # pip shows this, and what CMake says of its progress, with -v only.
    print(f"nhood: compiling the C library with {jobs} jobs; one takes about a minute and a half", flush=True)
    subprocess.check_call(["cmake", "-S", SOURCE, "-B", folder, *options])
    subprocess.check_call(["cmake", "--build", folder, "--parallel", str(jobs)])
    return Path(folder, library_name())


def fits_wheel(tool: Path) -> bool:
    """Whether the tool is there and finds the library by the name that it has in a wheel, which is one without version."""
    return tool.is_file() and b"libnhood.so." not in tool.read_bytes()


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        package = Path(self.build_lib, "nhood")
        shutil.copyfile(SOURCE / "LICENSE", package / "LICENSE")
        with tempfile.TemporaryDirectory() as folder:
            library = Path(os.environ.get("NHOOD_LIBRARY") or build_library(folder))
            shutil.copyfile(library, package / library_name(library.name))
            for name in BESIDE:
                if library.with_name(name).exists():
                    shutil.copyfile(library.with_name(name), package / name)
            for name in filter(lambda name: fits_wheel(library.with_name(name)), TOOLS):
                shutil.copy(library.with_name(name), package / name)  # with its right to be executed


class Python3Wheel(bdist_wheel):
    """The library ties the wheel to a platform, but to no version or ABI of Python: the package does without the module that
    CPython's stable ABI is for."""

    def get_tag(self) -> tuple:
        return "py3", "none", super().get_tag()[2]


class SourceWithLibrary(sdist):
    """Adds the C sources, which lie outside of this folder."""

    def make_release_tree(self, base_dir: str, files: list) -> None:
        super().make_release_tree(base_dir, files)
        for part in SOURCE_PARTS:
            target = Path(base_dir, "source", part)
            if (SOURCE / part).is_dir():
                shutil.copytree(SOURCE / part, target)
            else:
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(SOURCE / part, target)


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


scratch = tempfile.mkdtemp()
atexit.register(shutil.rmtree, scratch, ignore_errors=True)
setup(
    version=version(),
    py_modules=["nhood_command"],
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": Python3Wheel, "sdist": SourceWithLibrary},
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
)
