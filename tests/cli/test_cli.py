"""The command line: what it prints, what it writes and its exit codes."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corral.cli.main import main

ROOT = Path(__file__).parents[2]
SMALL = [
    "--n-envs",
    "2",
    "--n-steps",
    "32",
    "--batch-size",
    "32",
    "--n-epochs",
    "1",
    "--timesteps",
    "128",
    "--seed",
    "1",
]


def corral(*arguments):
    """Run the command line in this process; return the exit code."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["trian"], "unknown verb 'trian' (did you mean 'train'?)"),
        (["train"], "which env?"),
        (["train", "CartPol-v1"], "unknown env 'CartPol-v1' (did you mean 'CartPole-v1'?)"),
        (["train", "CartPole-v1", "--n-env", "3"], "unknown flag --n-env (did you mean '--n-envs'?)"),
        (["train", "CartPole-v1", "--n-envs", "0"], "n_envs '0': should be greater than or equal to 1"),
        (["train", "CartPole-v1", "--n-envs", "2.5"], "n_envs '2.5'"),
        (["train", "CartPole-v1", "--n-envs"], "expected one argument"),
        (["train", "CartPole-v1", "--lr", "0.1"], "unknown flag --lr (did you mean '--learning-rate'?)"),
        (["train", "typo.py"], "which callable of typo.py?"),
        (["train", "CartPole-v1", "--batch-size", "100"], "does not divide the rollout"),
        (["train", "CartPole-v1", "--device", "cuda"], "CUDA devices; use --device cpu"),
        (["train", "CartPole-v1", "--config", "none.yaml"], "cannot read config 'none.yaml'"),
        (
            ["train", "CartPole-v1", "--config", "typo.yaml"],
            "unknown key 'n_env' in 'typo.yaml' (did you mean 'n_envs'?)",
        ),
        (["train", "CartPole-v1", "--env-kwargs", "speed=3"], "unexpected keyword argument 'speed'"),
        (["train", "CartPole-v1", "--policy", "nowhere:net"], "no module named 'nowhere'"),
        (["eval", "nothing"], "not a run directory"),
        (["resume", "latest"], "there is no run under runs/"),
        (["play", "CartPole-v1", "--save", "clip.avi"], "should end in .gif, .mp4 or .png"),
        (["play", "toy-work", "--save", "clip.gif"], "does not render as rgb_array"),
        (["play", "toy-maze", "--checkpoint", "latest"], "is an env, not a run"),
        (["play", "toy-maze", "--fps", "0"], "--fps 0: should be at least 1"),
        (["play", "runs/nothing"], "not a run directory"),
        (["eval", "nothing", "--seed", "-1"], "--seed -1: should be at least 0"),
        (["train", "toy-maze", "--env-kwargs", "limit=3", "--env-kwargs", "limit=4"], "limit is given twice"),
    ],
)
def test_usage_errors_are_one_line_and_write_no_files(tmp_path, capsys, arguments, complaint):
    (tmp_path / "typo.yaml").write_text("n_env: 3\n")
    assert corral(*arguments) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1 or "traceback" in err
    assert [p.name for p in tmp_path.iterdir()] == ["typo.yaml"]


LONG_NAME, DEEP_PATH, LONG_NUMBER = "x" * 300, "a/" * 2500 + "b", "9" * 5000


@pytest.mark.parametrize("name", [LONG_NAME, DEEP_PATH, "caf\udce9", "a\0b"], ids=["long", "deep", "not UTF-8", "null"])
@pytest.mark.parametrize(
    "arguments",
    [
        "train NAME",
        "train NAME.py:make",
        "train NAME:make",
        "train CartPole-v1 --output-dir NAME",
        "train --config NAME",
        "train CartPole-v1 --policy NAME.py:make",
        "train CartPole-v1 --env-kwargs NAME",
        "train CartPole-v1 --NAME",
        "train card-battle --opponent NAME",
        "train game-boy --memory-map NAME",
        "resume NAME",
        "eval NAME",
        "play CartPole-v1 --save NAME/clip.gif",
        "doctor CartPole-v1 --replay NAME",
        "sweep CartPole-v1 --presets NAME",
        "sweep CartPole-v1 --preset NAME",
        "sweep CartPole-v1 --trials 1 --output-dir NAME",
        "compare NAME NAME",
    ],
)
def test_names_that_no_file_can_have_are_refused_in_one_line(capsys, arguments, name):
    assert corral(*(argument.replace("NAME", name) for argument in arguments.split())) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 700, error


@pytest.mark.parametrize(
    "arguments",
    [
        "train CartPole-v1 --seed NUMBER",
        "train CartPole-v1 --net-arch NUMBER",
        "train CartPole-v1 --net-arch pi=NUMBER",
        "train CartPole-v1 --duration 1:30",
        "train .a:make",
        "eval CartPole-v1 --seed NUMBER",
        "doctor CartPole-v1 --n-envs NUMBER",
        "sweep CartPole-v1 --trials NUMBER",
        "sweep CartPole-v1 --trials 1 --search n_envs=1,NUMBER",
        "sweep CartPole-v1 --trials 1 --search learning_rate=log:1:NUMBER",
        "sweep CartPole-v1 --trials 1 --search NUMBER=1,2",
    ],
)
def test_values_that_no_setting_can_have_are_refused_in_one_line(capsys, arguments):
    assert corral(*arguments.replace("NUMBER", LONG_NUMBER).split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 700, error


@pytest.mark.parametrize(
    "arguments",
    ["sweep CartPole-v1 --presets file.yaml", "train game-boy --memory-map file.yaml", "train --config file.yaml"],
)
@pytest.mark.parametrize(
    "file",
    ["env: 5\n", f"a: {LONG_NUMBER}\n", "a: !!int x\n", "policy: 5\nenv: CartPole-v1\n", f"{'[' * 2000}"],
    ids=len,
)
def test_files_with_values_that_no_setting_can_have_are_refused_in_one_line(capsys, arguments, file):
    Path("file.yaml").write_text(file)
    assert corral(*arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 700, error


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
@pytest.mark.parametrize("arguments", ["train CartPole-v1 --output-dir shut/run", "resume shut/run", "eval shut/run"])
def test_directories_without_search_permission_are_refused_in_one_line(arguments):
    drop_capabilities = []
    if os.geteuid() == 0:  # root may search any directory unless it drops these capabilities
        if shutil.which("setpriv") is None:
            pytest.skip("dropping the capabilities of root needs setpriv")
        capabilities = "-dac_override,-dac_read_search"
        drop_capabilities = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"]
    Path("shut").mkdir(mode=0o000)
    command = [*drop_capabilities, sys.executable, "-m", "corral", *arguments.split()]
    completed = subprocess.run(command, capture_output=True, text=True)
    Path("shut").chmod(0o700)
    assert completed.returncode == 2 and completed.stderr.count("\n") == 1, completed.stderr


def test_a_run_is_trained_evaluated_played_resumed_and_listed(tmp_path, capsys):
    assert corral("train", "CartPole-v1", *SMALL, "--output-dir", "runs/a") == 0
    out = capsys.readouterr().out
    assert "results in runs/a" in out and "corral eval runs/a" in out and "steps per second" in out
    assert corral("eval", "runs/a", "--episodes", "3") == 0
    assert "95% interval" in capsys.readouterr().out
    assert corral("play", "latest", "--save", "clip.gif", "--max-steps", "5") == 0
    assert corral("play", "runs/a", "--save", "clip.mp4", "--max-steps", "5", "--fps", "10") == 0
    assert (tmp_path / "clip.gif").read_bytes()[:3] == b"GIF" and b"ftyp" in (tmp_path / "clip.mp4").read_bytes()[:16]
    assert corral("resume", "runs/a", "--total-timesteps", "192") == 0
    assert json.loads(Path("runs/a/summary.json").read_text())["steps"] == 192
    capsys.readouterr()
    assert corral("list", "runs") == 0 and corral("list") == 0
    out = capsys.readouterr().out
    assert "runs/a" in out and "CartPole-v1" in out and "toy-maze" in out


def test_flags_override_the_config_file(capsys):
    Path("c.yaml").write_text(
        "env: CartPole-v1\nparallel: {n_envs: 4}\ntraining: {n_steps: 16, batch_size: 16, n_epochs: 1}\n"
    )
    assert (
        corral(
            "train", "--config", "c.yaml", "--timesteps", "40", "--n-envs", "2", "--output-dir", "r", "--eval-freq", "0"
        )
        == 0
    )
    assert json.loads(Path("r/summary.json").read_text())["steps"] == 64


def test_an_env_that_renders_text_is_played_in_the_terminal(capsys):
    assert corral("play", "toy-maze", "--max-steps", "3") == 0
    out = capsys.readouterr().out
    assert "@" in out and "random legal moves" in out and "episode 1: reward" in out


def test_the_printed_command_names_the_code_of_the_run_and_works(tmp_path, capsys):
    Path("game.py").write_text("from tests.toy_envs import Counter as make\n")
    assert corral("train", "game.py:make", *SMALL, "--output-dir", "my run") == 0
    assert "corral eval 'my run' --env game.py:make" in capsys.readouterr().out
    arguments = ["eval", "my run", "--episodes", "2"]
    assert corral(*arguments) == 2
    program, *printed = shlex.split(capsys.readouterr().err.strip().split("repeat it: ")[1])
    assert printed == [*arguments, "--env", "game.py:make"]
    assert subprocess.run([program, *printed], env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode == 0


def test_a_network_file_that_has_moved_is_loaded_from_its_new_path():
    Path("net.py").write_text("from tests.training.test_runs import Tiny as network\n")
    assert corral("train", "CartPole-v1", *SMALL, "--policy", "net.py:network", "--output-dir", "r") == 0
    Path("moved").mkdir()
    Path("net.py").rename("moved/net.py")
    arguments = ["--policy", "moved/net.py:network", "--timesteps", "192"]
    assert corral("resume", "r", *arguments) == 0


NETWORK = """
import functools
import threading
import torch
from corral.policy.policy import n_action_params


class Network(torch.nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.action = torch.nn.Linear(observation_space.shape[0], n_action_params(action_space))
        self.value = torch.nn.Linear(observation_space.shape[0], 1)

    def forward(self, observations):
        with LOCK:
            observations = scale(observations) * factor()
        return self.action(observations), self.value(observations).squeeze(-1)


LOCK = threading.Lock()


@torch.jit.script
def scale(x):
    return x * 2


@functools.lru_cache
def factor():
    return 0.5
"""


@pytest.mark.parametrize("backend", [["serial"], ["worker", "--num-workers", "2"]], ids=["serial", "worker"])
def test_a_network_in_a_file_works_with_every_backend(backend):
    """A network that cannot be pickled works, because a worker imports its file."""
    Path("own_net.py").write_text(NETWORK)
    arguments = ["--policy", "own_net.py:Network", "--output-dir", "r", "--backend", *backend]
    assert corral("train", "CartPole-v1", *SMALL, *arguments) == 0


SINGLE_ENV = """
import os
from gymnasium.envs.classic_control import CartPoleEnv


class OnlyOnce(CartPoleEnv):
    made = False

    def __init__(self):
        if OnlyOnce.made:
            END
        OnlyOnce.made = True
        super().__init__()
"""


@pytest.mark.parametrize("raises", [False, True])
def test_an_env_that_can_be_constructed_only_once_is_trained(raises, capsys):
    Path("only_once.py").write_text(
        SINGLE_ENV.replace("END", "raise RuntimeError('only one')" if raises else "os._exit(3)")
    )
    arguments = ["--n-envs", "1", "--eval-freq", "0", "--output-dir", "r"]
    code = f"from corral.cli.main import main; main({['train', 'only_once.py:OnlyOnce', *SMALL, *arguments]!r})"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert completed.returncode == 0 and "Traceback" not in completed.stderr, completed.stderr


def test_the_example_game_passes_doctor_and_is_trained_and_played(capsys):
    game = f"{ROOT / 'examples' / 'my_game.py'}:make_env"
    assert corral("doctor", game, "--steps", "500") == 0
    assert "masked" not in capsys.readouterr().out
    assert corral("train", game, *SMALL, "--output-dir", "r", "--env-kwargs", "limit=12") == 0
    assert "actions masked by the env" in capsys.readouterr().out
    assert corral("play", "r", "--env", game) == 0
    out = capsys.readouterr().out
    last = [line for line in out.splitlines() if line.startswith("total")][-1]
    assert "episode 1: reward" in out and last != "total 0 of 12"  # the end of the episode is shown


def test_the_exit_code_of_doctor_says_whether_checks_failed(tmp_path, capsys):
    assert corral("doctor", "toy-maze", "--steps", "500") == 0
    assert "11 pass" in capsys.readouterr().out
    Path("bad.py").write_text("from tests.toy_envs import Forgetful as make\n")
    assert corral("doctor", "bad.py:make", "--steps", "50") == 2


@pytest.mark.parametrize("verb", ["train", "resume", "eval", "play", "doctor", "compare", "list"])
def test_help_shows_usage_and_examples(capsys, verb):
    assert corral(verb, "--help") == 0
    out = capsys.readouterr().out
    assert f"corral {verb}" in out and "examples:" in out


def test_an_env_that_raises_ends_the_run_with_one_traceback_and_exit_code_1(tmp_path):
    """Runs in another process; the files of the run are written all the same."""
    Path("game.py").write_text(
        "from tests.toy_envs import Counter\n"
        "class Game(Counter):\n"
        "    def step(self, action):\n"
        "        if self.step_count == 4:\n"
        "            raise ValueError('the dragon won')\n"
        "        return super().step(action)\n"
    )
    command = [
        sys.executable,
        "-m",
        "corral",
        "train",
        "game.py:Game",
        *SMALL,
        "--timesteps",
        "9999",
        "--num-workers",
        "2",
        "--output-dir",
        "r",
    ]
    completed = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    )
    assert completed.returncode == 1, completed.stderr
    assert completed.stderr.count("Traceback (most recent call last)") == 1
    assert "ValueError: the dragon won" in completed.stderr and "game.py" in completed.stderr
    assert "env " in completed.stderr and "seed " in completed.stderr and "step " in completed.stderr
    assert json.loads(Path("r/summary.json").read_text())["exit_reason"] == "failed: EnvFault"


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_verb_is_imported_takes_effect_after_the_import(monkeypatch, number, exit_code):
    """An exception in the import of torch's C++ code would abort the process."""
    imported = []

    def import_module(name):
        signal.raise_signal(number)
        imported.append(name)

    monkeypatch.setattr("corral.cli.main.importlib.import_module", import_module)
    assert corral("list") == exit_code
    assert imported == ["corral.cli.inspect"]


def test_a_second_ctrl_c_while_a_verb_is_imported_ends_the_process_at_once():
    code = (
        "import signal; from corral.core.deferred_signals import deferred_signals\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "with deferred_signals():\n    signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGINT)"
    )
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 130


def test_ctrl_c_while_the_command_line_is_read_ends_without_a_traceback(monkeypatch):
    def interrupted(script):
        raise KeyboardInterrupt

    monkeypatch.setattr("corral.cli.main.build_parsers", interrupted)
    assert corral("train", "CartPole-v1") == 130
