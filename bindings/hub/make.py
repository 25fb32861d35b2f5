#!/usr/bin/env python3
"""Makes folders that Hugging Face's `kernels` package (0.17 or later) loads as kernels.

    bindings/hub/make.py FOLDER [LIBRARY]

FOLDER/natten stands in for shi-labs/natten: programs that fetch NATTEN from the hub run on nhood, unchanged, with

    LOCAL_KERNELS="shi-labs/natten=FOLDER/natten"

FOLDER/nhood is nhood.torch itself, for kernels.get_local_kernel. Each folder holds all it needs but torch and numpy: the
Python package and LIBRARY (build/libnhood.so), for this machine's operating system and processor, for CPU tensors and CUDA
tensors, for any version of torch from 2.4 on.
"""

import json
import platform
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
VARIANT = "torch-universal"  # of any backend: the library finds the GPU itself
LICENSE = "MIT"


def version() -> str:
    header = (SOURCE / "include" / "nhood.h").read_text()
    return ".".join(re.findall(r"^#define NHOOD_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header, re.MULTILINE))


def make(folder: Path, name: str, library: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    variant = folder / "build" / VARIANT
    packages = shutil.ignore_patterns("__pycache__", "libnhood.so")
    shutil.copytree(SOURCE / "bindings" / "python" / "nhood", variant / "nhood", ignore=packages)
    shutil.copyfile(library, variant / "nhood" / "libnhood.so")
    shutil.copyfile(SOURCE / "LICENSE", variant / "LICENSE")
    shutil.copyfile(HERE / "kernel_init.py", variant / "__init__.py")
    metadata = {
        # Also the module's name: two versions of a kernel in one process are two modules.
        "id": f"_{name}_nhood_{version().replace('.', '_')}",
        "name": name,
        "version": 1,
        "license": LICENSE,
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    machine = f"{platform.system()}-{platform.machine()}"
    module = "nhood.compat.natten" if name == "natten" else "nhood.torch"
    (variant / "target.json").write_text(json.dumps({"machine": machine, "module": module}, indent=2) + "\n")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    library = Path(sys.argv[2]) if len(sys.argv) == 3 else SOURCE / "build" / "libnhood.so"
    if not library.exists():
        sys.exit(f"{library} is not there: run make first")
    for name in ("natten", "nhood"):
        make(Path(sys.argv[1], name), name, library)
        print(f"{Path(sys.argv[1], name)}: version 1, variant {VARIANT}, nhood {version()}")


if __name__ == "__main__":
    main()
