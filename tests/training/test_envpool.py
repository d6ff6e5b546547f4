"""EnvPool envs: workers do not change the weights; episodes that cannot be restored are truncated and counted."""

import os
import signal

import psutil
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import corral
from corral.core.errors import EnvFault, UsageError
from tests.toy_envs import Masked

SMALL = {
    "n_envs": 4,
    "n_steps": 64,
    "batch_size": 64,
    "n_epochs": 2,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
    "seed": 3,
}


def train(steps=1024, env="envpool:CartPole-v1", **settings):
    return corral.train(env, **{**SMALL, "timesteps": steps, **settings})


def test_weights_do_not_depend_on_the_backend():
    backends = [
        {"backend": "serial"},
        {"num_workers": 2, "parallel_start_method": "fork"},
        {"num_workers": 3, "overlap": False},
        {"backend": "process", "num_workers": 2},
    ]
    summaries = [train(**backend).summary for backend in backends]
    assert len({summary.weights_sha256 for summary in summaries}) == 1
    assert all(summary.inexact == 0 and summary.episodes > 20 for summary in summaries)


@pytest.mark.parametrize("backend", ["worker", "process"])
def test_a_killed_worker_is_replaced_and_its_episodes_are_truncated(backend, capsys):
    killed = []

    def kill(state):
        if not killed:
            workers = [child for child in psutil.Process().children(True) if "forkserver" in " ".join(child.cmdline())]
            # The fork server has no env and uses less memory than a worker.
            victim = max(workers, key=lambda child: child.memory_info().rss)
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    summary = train(2048, backend=backend, num_workers=2, callback=kill).summary
    assert killed and summary.steps == 2048 and (summary.restarts, summary.inexact) == (1, 2)
    assert "could not be restored" in capsys.readouterr().err


def test_a_resumed_run_starts_new_episodes_with_a_warning(capsys):
    train(512, output_dir="run", num_workers=2)
    summary = corral.resume("run", timesteps=1024, quiet=True).summary
    assert summary.steps == 1024 and summary.inexact == 4
    assert "envs 0, 1, 2, 3 could not be restored" in capsys.readouterr().err
    on_serial = corral.resume("run", timesteps=1536, quiet=True, backend="serial").summary
    assert on_serial.steps == 1536 and on_serial.inexact == 8


def test_a_resumed_run_has_the_same_weights_for_any_number_of_workers():
    train(512, output_dir="run", backend="serial")
    train(512, output_dir="other", num_workers=2)
    results = [corral.resume("run", timesteps=1024, num_workers=2, quiet=True)]
    results += [corral.resume("other", timesteps=1024, backend="serial", quiet=True)]
    assert len({result.summary.weights_sha256 for result in results}) == 1


def test_action_masks_of_a_vector_env_are_used():
    def make(num_envs):
        return SyncVectorEnv([lambda: Masked("info")] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    summary = train(512, env=make).summary  # with backend auto, which first probes the vector env
    assert summary.steps == 512 and summary.mean_reward == 10


STAGES_WITH_OPTIONS = [{"name": "easy", "options": {"level": 1}}]


def test_vector_envs_that_cannot_be_made_are_named_whatever_the_settings():
    def make(num_envs):
        raise OSError("port 5555 is in use")

    with pytest.raises(EnvFault, match="making the envs failed: OSError: port 5555 is in use"):
        train(env=make, stages=STAGES_WITH_OPTIONS)


def test_adaptive_stages_and_unknown_envpool_names_are_refused():
    with pytest.raises(UsageError, match="adaptive moves envs between workers, which envpool:CartPole-v1"):
        train(adaptive=True)
    with pytest.raises(UsageError, match="stages: envpool:CartPole-v1 is reset without options"):
        train(stages=STAGES_WITH_OPTIONS)
    with pytest.raises(UsageError, match="EnvPool has no 'Cartpole-v1'"):
        train(env="envpool:Cartpole-v1")
