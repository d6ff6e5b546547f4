"""Printing never fails for want of a reader, whatever it is that prints."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from corral.core.stdio import tolerate_closed_stdout

ROOT = Path(__file__).parents[2]
ENVIRON = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}
FORGIVE = "from corral.core.stdio import tolerate_closed_stdout; tolerate_closed_stdout()"
GAME = """
import os
from tests.toy_envs import Counter

class Noisy(Counter):
    def __init__(self):
        super().__init__()
        print("made", flush=True)

    def step(self, action):
        for _ in range(1000):
            print("x" * 1000)
        return super().step(action)

class Closed(Counter):
    def step(self, action):
        print("x", flush=True)
        os.write(1, b"as C code does")
        assert all(os.path.samefile(f"/dev/fd/{i}", os.devnull) for i in range(3))
        return super().step(action)
"""
SETTINGS = {"n-envs": 2, "n-steps": 32, "batch-size": 32, "n-epochs": 1, "timesteps": 128, "eval-freq": 0}
FLAGS = [f"--{name}={value}" for name, value in SETTINGS.items()] + ["--output-dir=run"]


@pytest.fixture
def streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    return monkeypatch


@pytest.mark.parametrize(
    "code",
    [
        "print('x')",  # written at exit
        "print('x' * 10**6)",
        "print('x', flush=True)",
        "sys.stdout.writelines(['x'] * 10**5)",
        "sys.stdout.buffer.write(b'x' * 10**6)",
        "print('x', flush=True); os.write(1, b'x'); subprocess.run(['echo', 'x'], check=True)",
        "from rich.console import Console; Console().print('x')",
        "sys.stdout.close(); print('x', flush=True)",
    ],
)
def test_a_reader_who_left_is_forgiven(code):
    """``-X dev`` shows what some versions of Python ignore silently."""
    code = f"import os, subprocess, sys\n{FORGIVE}\nsys.stdin.readline()\n{code}"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-X", "dev", "-c", code], **pipes, text=True, env=ENVIRON)
    process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.stderr.read() == "" and process.wait() == 0


def test_a_full_disk_is_forgiven():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", f"{FORGIVE}; print('x' * 9999)"], stdout=full, env=ENVIRON)
    assert done.returncode == 0


def test_what_can_be_written_is(streams):
    for name in ("stdout", "stderr"):
        streams.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), "ascii", line_buffering=True))
    raw = sys.stdout.buffer
    tolerate_closed_stdout()
    tolerate_closed_stdout()
    print("µ")
    assert sys.stdout.write("ab") == 2
    sys.stdout.flush()
    sys.stdout.buffer.write(b"c")
    assert raw.getvalue() == b"?\nabc"
    assert (sys.stdout.encoding, sys.stdout.errors, sys.stdout.isatty()) == ("ascii", "replace", False)
    sys.stdout.reconfigure(encoding="utf-8")
    print("µ", flush=True)
    assert raw.getvalue().endswith("µ\n".encode())


def test_it_travels_as_a_name(streams):
    """An env's factory may hold it, and finds the worker's own."""
    tolerate_closed_stdout()
    for stream in (sys.stdout, sys.stderr):
        assert cloudpickle.loads(cloudpickle.dumps(stream)) is stream


def test_closed_descriptors_are_occupied():
    code = f"import os, sys\n{FORGIVE}\nprint('x', flush=True)\nprint(*os.pipe(), file=sys.stderr)"
    words = ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, code]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, env=ENVIRON)
    assert done.returncode == 0 and all(int(word) > 2 for word in done.stderr.split())


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_of_a_program_without_output_have_none_either(tmp_path, method):
    Path("game.py").write_text(GAME)
    Path("program.py").write_text(
        "import numpy as np\nfrom corral.vec.make_vec import make_parallel_env\n"
        f"env = make_parallel_env('game.py:Closed', 2, num_workers=2, start_method={method!r})\n"
        "env.reset()\nenv.step(np.zeros(2, int))\nenv.close()\n"
    )
    words = ["/bin/sh", "-c", 'exec "$0" program.py <&- >&- 2>&-', sys.executable]
    assert subprocess.run(words, env=ENVIRON, timeout=600).returncode == 0


@pytest.mark.parametrize("backend", ["serial", "worker"])
def test_an_env_that_prints_much_trains_on_without_a_reader(tmp_path, backend):
    """128 MB."""
    Path("game.py").write_text(GAME)
    words = [sys.executable, "-m", "corral", "train", "game.py:Noisy", *FLAGS, "--backend", backend]
    reader, writer = os.pipe()
    process = subprocess.Popen(words, stdout=writer, stderr=subprocess.PIPE, text=True, env=ENVIRON)
    os.close(writer)
    os.close(reader)
    assert process.stderr.read() == "" and process.wait(60) == 0
    assert json.loads(Path("run/summary.json").read_text())["steps"] == 128


@pytest.mark.parametrize("backend", ["serial", "worker"])
def test_a_run_without_any_output_trains(tmp_path, backend):
    Path("game.py").write_text(GAME)
    words = ["/bin/sh", "-c", 'exec "$0" -m corral train "$@" <&- >&- 2>&-', sys.executable, "game.py:Closed", *FLAGS]
    assert subprocess.run([*words, "--backend", backend], env=ENVIRON, timeout=600).returncode == 0
    assert json.loads(Path("run/summary.json").read_text())["steps"] == 128
