"""setuptools' build backend, which also asks for CMake and Ninja from PyPI where the machine has none: then a C compiler
is all that must be there before."""

import os
import shutil

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403, the hooks that stay as they are


def _compiling() -> list:
    if os.environ.get("NHOOD_LIBRARY"):
        return []
    found_make = shutil.which("make") or shutil.which("ninja")
    return ([] if shutil.which("cmake") else ["cmake>=3.22"]) + ([] if found_make else ["ninja"])


def get_requires_for_build_wheel(config_settings=None):
    return build_meta.get_requires_for_build_wheel(config_settings) + _compiling()


def get_requires_for_build_editable(config_settings=None):
    return build_meta.get_requires_for_build_editable(config_settings) + _compiling()
