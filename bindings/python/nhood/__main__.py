"""`python -m nhood`: which library is in use, and what it found here. With arguments: the C tool."""

import platform
import sys

import numpy

from . import _tool, devices, library_path, notes, version
from ._plans import current_context


def main() -> None:
    if len(sys.argv) > 1:
        _tool.run(sys.argv[1:], library_path)
    print(f"nhood    {version()}, {library_path}")
    print(f"python   {platform.python_version()}, numpy {numpy.__version__}")
    for device in devices():
        print(f"device   {device.name:<9} {device.description}")
    print(f"threads  {current_context().threads_origin}")
    print(f"notes    {notes()}")


if __name__ == "__main__":
    main()
