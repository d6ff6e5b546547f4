"""Printing never fails, even if standard output is closed, its reader has ended or the disk is full."""

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
TOLERATE = "from corral.core.stdio import tolerate_closed_stdout; tolerate_closed_stdout()"
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
    """Restore ``sys.stdout`` and ``sys.stderr`` after the test; return the fixture that replaces them."""
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
def test_writing_to_a_pipe_whose_reader_has_ended_does_not_fail(code):
    """Python's ``-X dev`` reports errors of writing at exit, which some versions of Python ignore silently."""
    code = f"import os, subprocess, sys\n{TOLERATE}\nsys.stdin.readline()\n{code}"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-X", "dev", "-c", code], **pipes, text=True, env=ENVIRON)
    process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.stderr.read() == "" and process.wait() == 0


def test_writing_to_a_full_disk_does_not_fail():
    with Path("/dev/full").open("w") as full:
        completed = subprocess.run([sys.executable, "-c", f"{TOLERATE}; print('x' * 9999)"], stdout=full, env=ENVIRON)
    assert completed.returncode == 0


def test_output_is_written_as_before_while_the_stream_works(streams):
    for name in ("stdout", "stderr"):
        streams.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), "ascii", line_buffering=True))
    byte_stream = sys.stdout.buffer
    tolerate_closed_stdout()
    tolerate_closed_stdout()
    print("µ")
    assert sys.stdout.write("ab") == 2
    sys.stdout.flush()
    sys.stdout.buffer.write(b"c")
    assert byte_stream.getvalue() == b"?\nabc"
    assert (sys.stdout.encoding, sys.stdout.errors, sys.stdout.isatty()) == ("ascii", "replace", False)
    sys.stdout.reconfigure(encoding="utf-8")
    print("µ", flush=True)
    assert byte_stream.getvalue().endswith("µ\n".encode())


def test_a_pickled_stream_becomes_the_stream_of_the_process_that_loads_it(streams):
    """An env factory that refers to ``sys.stdout`` uses the worker's stream in a worker."""
    tolerate_closed_stdout()
    for stream in (sys.stdout, sys.stderr):
        assert cloudpickle.loads(cloudpickle.dumps(stream)) is stream


def test_closed_standard_descriptors_are_not_reused_for_other_files():
    code = f"import os, sys\n{TOLERATE}\nprint('x', flush=True)\nprint(*os.pipe(), file=sys.stderr)"
    shell_command = ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, code]
    completed = subprocess.run(shell_command, stderr=subprocess.PIPE, text=True, env=ENVIRON)
    assert completed.returncode == 0 and all(int(descriptor) > 2 for descriptor in completed.stderr.split())


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_of_a_program_with_closed_output_run(tmp_path, method):
    Path("game.py").write_text(GAME)
    Path("program.py").write_text(
        "import numpy as np\nfrom corral.vec.make_vec import make_parallel_env\n"
        f"env = make_parallel_env('game.py:Closed', 2, num_workers=2, start_method={method!r})\n"
        "env.reset()\nenv.step(np.zeros(2, int))\nenv.close()\n"
    )
    shell_command = ["/bin/sh", "-c", 'exec "$0" program.py <&- >&- 2>&-', sys.executable]
    assert subprocess.run(shell_command, env=ENVIRON, timeout=600).returncode == 0


@pytest.mark.parametrize("backend", ["serial", "worker"])
def test_training_continues_if_an_env_prints_128_mb_that_nobody_reads(tmp_path, backend):
    Path("game.py").write_text(GAME)
    train_command = [sys.executable, "-m", "corral", "train", "game.py:Noisy", *FLAGS, "--backend", backend]
    reader, writer = os.pipe()
    process = subprocess.Popen(train_command, stdout=writer, stderr=subprocess.PIPE, text=True, env=ENVIRON)
    os.close(writer)
    os.close(reader)
    assert process.stderr.read() == "" and process.wait(60) == 0
    assert json.loads(Path("run/summary.json").read_text())["steps"] == 128


@pytest.mark.parametrize("backend", ["serial", "worker"])
def test_training_runs_with_closed_input_output_and_error(tmp_path, backend):
    Path("game.py").write_text(GAME)
    shell_command = [
        "/bin/sh",
        "-c",
        'exec "$0" -m corral train "$@" <&- >&- 2>&-',
        sys.executable,
        "game.py:Closed",
        *FLAGS,
    ]
    assert subprocess.run([*shell_command, "--backend", backend], env=ENVIRON, timeout=600).returncode == 0
    assert json.loads(Path("run/summary.json").read_text())["steps"] == 128
