"""scripts/setup: what each group asks for, on a machine that has nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
COMPILER = {"gcc", "libc6-dev", "make", "cmake"}
PYTHON = {"python3", "python3-venv"}


def programs(folder, *names):
    for name in names:
        (folder / name).symlink_to(shutil.which(name))


def missing(tmp_path, group):
    programs(tmp_path, "sh", "dirname")
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    setup = SOURCE / "scripts" / "setup"
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([setup, group], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done
    return set(done.stderr.partition("apt-get install ")[2].split())


@pytest.mark.parametrize("group", ["wheel", "deb"])
def test_one_kind_of_package_needs_no_other(tmp_path, group):
    others = {"wheel": PYTHON, "deb": {"dpkg-dev", "debhelper", "dh-python", "python3-all", "python3-dev", "git"}}[group]
    found = missing(tmp_path, group)
    # Whether a file is there says more of this machine than of the group.
    assert found - {"build-essential"} == COMPILER | others


@pytest.mark.parametrize("group", ["build", "demo", "test"])
def test_only_pictures_need_libpng(tmp_path, group):
    assert ("libpng-dev" in missing(tmp_path, group)) == (group != "build")


def test_all_packages_need_more(tmp_path):
    assert {"gcc-mingw-w64-x86-64-posix", "qemu-user", "lintian"} | PYTHON | COMPILER < missing(tmp_path, "packages")


def test_conda_packages_say_what_is_missing(tmp_path):
    programs(tmp_path, "sh", "make", "nproc")
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(["make", "conda"], env=environment, cwd=SOURCE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "rattler-build is missing: conda install" in done.stdout, done
