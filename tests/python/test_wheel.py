"""The wheel: built as a user builds it, installed into a fresh environment, and used there."""

import email
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
HAS_HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()
NEUTRAL = {name: value for name, value in os.environ.items() if name not in ("NHOOD_LIBRARY", "PYTHONPATH")}


def run(*command, **environment):
    done = subprocess.run(
        command, env={**NEUTRAL, **environment}, cwd="/", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(folder, **environment):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "-w", folder, SOURCE / "bindings" / "python", **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Without optimisation, which takes several times as long as the rest: packages_wheel has the published one."""
    return build_wheel(tmp_path_factory.mktemp("wheel"), CMAKE_ARGS="-DCMAKE_C_FLAGS_RELEASE=-O0")


def test_contents(wheel):
    assert wheel.name.startswith("nhood-") and "-py3-none-linux_" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    bindings = SOURCE / "bindings" / "python"
    modules = {str(path.relative_to(bindings)) for path in (bindings / "nhood").rglob("*.py")}
    in_package = {name for name in names if name.startswith("nhood/")}
    quick = {"nhood/nhood_quick.abi3.so"} if HAS_HEADERS else set()
    compiled = {"nhood/libnhood.so", "nhood/nhood_xla.so", "nhood/nhood"}
    assert in_package == modules | quick | compiled | {"nhood/py.typed", "nhood/LICENSE"}
    assert {name for name in names if "/" not in name} == {"nhood_command.py"}


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    facts = email.message_from_string(archive.read(name).decode())
    holder = re.search(r"Copyright \(c\) \d+ (.*)", (SOURCE / "LICENSE").read_text())[1]
    assert (facts["Author"], facts["License-Expression"], facts["Requires-Python"]) == (holder, "MIT", ">=3.9")
    assert "Project-URL" not in facts and "Home-page" not in facts
    assert set(facts.get_all("Provides-Extra")) == {"torch", "cuda", "jax", "all"}
    needed = {"numpy": set(), "torch": {"torch", "all"}, "nvidia-cuda-nvrtc": {"cuda", "all"}, "jax": {"jax", "all"}}
    found = {}
    for line in facts.get_all("Requires-Dist"):
        found.setdefault(re.match(r"[\w-]+", line)[0], set()).update(re.findall(r'extra == .(\w+).', line))
    assert found == needed


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The programs of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", wheel)
    return folder / "bin"


def test_command(environment):
    """The C tool, as it is: its arguments, output, exit statuses and signals."""
    problem = "fwd:f32:b1h2d8:9x9:w3x3"
    for command in ([environment / "nhood"], [environment / "python", "-m", "nhood"]):
        assert "cpu.fused" in run(*command, "plan", problem)
        failed = subprocess.run([*command, "plan", "nonsense"], env=NEUTRAL, cwd="/", capture_output=True, text=True)
        assert failed.returncode == 2 and failed.stderr.startswith("nhood: nonsense: "), failed
        # A reader that goes away ends it silently, as Python, which ignores that signal, would not.
        first = f"{' '.join(map(str, command))} suite paper-1d | head -n 1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", first], env=NEUTRAL, cwd="/", capture_output=True, text=True, timeout=300)
        assert done.stdout.split() == ["fwd:f16:b1h1d32:512:w127:d4", str(128 + signal.SIGPIPE)] and not done.stderr, done
        # Ctrl-C ends the tool as it ends any program: 130 for a shell.
        default = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        process = subprocess.Popen([*command, "verify", "--random", "1000000"], env=NEUTRAL, stdout=subprocess.DEVNULL, **default)
        while Path(f"/proc/{process.pid}/exe").resolve().name != "nhood" and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    assert "usage: nhood" in subprocess.run([environment / "nhood"], env=NEUTRAL, capture_output=True, text=True).stdout
    assert "python   3." in run(environment / "python", "-m", "nhood")


def test_command_without_the_tool(environment, tmp_path):
    """Neither waits for itself nor takes the command, which is on the path, for the tool."""
    (package,) = environment.parent.glob("lib/python*/site-packages/nhood")
    tool = (package / "nhood").rename(tmp_path / "tool")
    path = {**NEUTRAL, "PATH": f"{environment}:/usr/sbin:/bin"}
    done = subprocess.run([environment / "nhood", "info"], env=path, capture_output=True, text=True, timeout=60)
    tool.rename(package / "nhood")
    assert done.returncode == 1 and "the tool is not installed" in done.stderr


def test_installed(wheel, environment):
    code = """if True:
        import numpy as np, nhood, sys
        assert nhood.library_path.is_relative_to(sys.prefix), nhood.library_path
        value = np.ones((1, 9, 8, 2, 4), np.float32)
        query = np.random.default_rng(0).standard_normal(value.shape).astype(np.float32)
        for _ in range(2):
            np.testing.assert_allclose(nhood.na2d(query, query, value, 5), value, rtol=1e-6)
        from nhood import _quick
        print(nhood.__version__, _quick._module is not None)
    """
    assert run(environment / "python", "-c", code).split() == [wheel.name.split("-")[1], str(HAS_HEADERS)]


def test_quick_start_installs(wheel, tmp_path):
    """The README's commands as they stand, where bindings/ is; the library is one that the other tests compiled."""
    readme = (SOURCE / "README.md").read_text()
    commands = re.search(r"^```sh\n(.*?)^```", readme[readme.index("## Quick start") :], flags=re.M | re.S)[1]
    (tmp_path / "bindings").symlink_to(SOURCE / "bindings")
    library = tmp_path / "libnhood.so"
    library.write_bytes(zipfile.ZipFile(wheel).read("nhood/libnhood.so"))
    check = "import nhood, sys; assert nhood.library_path.is_relative_to(sys.prefix); print(sys.prefix)"
    program = f"set -e; cd {tmp_path}\n{commands}\nunset NHOOD_LIBRARY\npython -c '{check}'"
    shown = run("sh", "-c", program, NHOOD_LIBRARY=str(library), PIP_DISABLE_PIP_VERSION_CHECK="1")
    assert shown.split()[-1] == str(tmp_path / ".venv")


def test_library_built_before_is_taken(tmp_path):
    library = tmp_path / "libnhood.so"
    library.write_bytes(b"any library")
    wheel = build_wheel(tmp_path, NHOOD_LIBRARY=str(library))
    assert zipfile.ZipFile(wheel).read("nhood/libnhood.so") == b"any library"
