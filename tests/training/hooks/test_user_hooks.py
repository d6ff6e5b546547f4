"""User-defined hooks: what they see and may change, their state in checkpoints, and what happens when they raise."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

import corral
from corral.core.errors import CheckpointError, CodeNotConfirmed, EnvFault, UsageError
from corral.storage.checkpoint import list_checkpoints, newest_checkpoint
from corral.storage.metrics_file import read_metrics
from corral.sweeps.api import resume_sweep
from corral.training.run import Run, weights_hash
from corral.training.signals import Interrupted

SMALL = {
    "n_envs": 2,
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 2,
    "eval_freq": 0,
    "tensorboard": False,
    "backend": "serial",
    "seed": 1,
    "quiet": True,
}
ITERATION = 64


def train(iterations, name="run", **settings):
    return corral.train("CartPole-v1", timesteps=iterations * ITERATION, output_dir=name, **{**SMALL, **settings})


def metric_rows(result):
    return read_metrics(result.run_dir / "metrics.jsonl")


@pytest.fixture(autouse=True)
def _work_in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class StatefulHook(corral.Hook):
    """Draws a number per iteration, keeps all of them as its state, and computes settings from their sum."""

    def __init__(self, calls=None):
        self.drawn, self.calls = [], calls if calls is not None else []

    def on_start(self, start):
        self.calls.append(("start", start.resumed, len(self.drawn)))

    def after_iteration(self, iteration):
        self.drawn.append(int(iteration.generator(self.name).integers(1000)))
        iteration.log("numbers/sum", sum(self.drawn))
        iteration.set("learning_rate", 1e-3 / (1 + sum(self.drawn) % 7))
        iteration.set("clip_range", 0.1 + 0.01 * (sum(self.drawn) % 5))
        iteration.set("ent_coef", 0.001 * (sum(self.drawn) % 3))

    def on_end(self, end):
        self.calls.append(("end", end.reason, len(self.drawn)))

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = list(state["drawn"])


def test_a_hook_is_called_around_iterations_and_logs_into_their_rows():
    calls = []
    result = train(3, hooks=[StatefulHook(calls)])
    assert calls == [("start", False, 0), ("end", "timesteps", 3)]
    sums = [row["numbers/sum"] for row in metric_rows(result)]
    assert len(sums) == 3 and sums == sorted(sums)


def test_a_setting_changed_by_a_hook_takes_effect_at_the_next_update():
    class SetsValue(corral.Hook):
        def after_iteration(self, iteration):
            if iteration.iteration == 1:
                iteration.set("learning_rate", 1e-5)

    plain, changed = train(3, "plain"), train(3, "changed", hooks=[SetsValue()])
    assert [row["train/learning_rate"] for row in metric_rows(changed)] == [3e-4, 1e-5, 1e-5]
    assert metric_rows(plain)[1]["train/approx_kl"] > 0
    assert plain.summary.weights_sha256 != changed.summary.weights_sha256


@pytest.mark.parametrize(("name", "value"), [("clip_range", 0.001), ("ent_coef", 0.5), ("learning_rate", 0.01)])
@pytest.mark.parametrize("learner", ["numpy", "torch"])
def test_a_setting_changed_by_a_hook_gives_the_same_weights_as_the_setting_in_the_config(name, value, learner):
    class SetsValue(corral.Hook):
        def after_iteration(self, iteration):
            iteration.set(name, value)
            iteration.stop("set")

    class StopsOnly(corral.Hook):
        def after_iteration(self, iteration):
            if iteration.iteration == 1:
                iteration.stop("stopped")

    train(9, "set", hooks=[SetsValue()], learner=learner)
    train(9, "config", hooks=[StopsOnly()], learner=learner)
    config = Path("config/config.yaml")
    lines = [f"{name}: {value}" if line.startswith(f"{name}:") else line for line in config.read_text().splitlines()]
    config.write_text("\n".join(lines))
    by_hook = corral.resume("set", timesteps=2 * ITERATION, hooks=[SetsValue()], quiet=True)
    by_config = corral.resume("config", timesteps=2 * ITERATION, hooks=[StopsOnly()], quiet=True)
    assert by_hook.summary.weights_sha256 == by_config.summary.weights_sha256


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma", 0.9, "'gamma' cannot change during a run; learning_rate, clip_range, ent_coef can"),
        ("clip_range", 0, "clip_range 0: should be a finite number, more than 0"),
        ("learning_rate", float("nan"), "learning_rate nan: should be a finite number, at least 0"),
        ("ent_coef", "0.1", "ent_coef '0.1': should be a finite number, at least 0"),
        ("learning_rate", 10**400, "learning_rate 1000"),
        ("ent_coef", np.float32("inf"), "should be a finite number, at least 0"),
    ],
)
def test_settings_that_hooks_cannot_change_and_invalid_values_are_refused(name, value, message):
    with pytest.raises(UsageError, match=message):
        train(2, callback=lambda iteration: iteration.set(name, value))


def test_a_resumed_run_with_a_hook_equals_an_uninterrupted_run():
    uninterrupted = train(8, "uninterrupted", hooks=[StatefulHook()])
    train(3, "stopped", hooks=[StatefulHook()], checkpoint_freq=ITERATION)
    calls = []
    resumed = corral.resume("stopped", timesteps=8 * ITERATION, hooks=[StatefulHook(calls)], quiet=True)
    assert calls[0] == ("start", True, 3)
    assert resumed.summary.weights_sha256 == uninterrupted.summary.weights_sha256
    assert [row["numbers/sum"] for row in metric_rows(resumed)] == [
        row["numbers/sum"] for row in metric_rows(uninterrupted)
    ]


def test_checkpoints_contain_hook_state_only_if_the_run_has_hooks():
    train(2, "plain", callback=lambda iteration: None)
    assert not {"hooks", "overrides"} & newest_checkpoint(Path("plain/checkpoints")).checkpoint.state.keys()
    assert "hooks" not in Path("plain/config.yaml").read_text()
    train(2, "stateful", hooks=[StatefulHook()])
    state = newest_checkpoint(Path("stateful/checkpoints")).checkpoint.state
    assert len(state["hooks"]["StatefulHook"]["drawn"]) == 2 and {*state["overrides"]} == {
        "learning_rate",
        "clip_range",
        "ent_coef",
    }


def test_a_hook_can_evaluate_save_a_checkpoint_and_get_the_model():
    results = {}

    class Evaluates(corral.Hook):
        def after_iteration(self, iteration):
            if iteration.iteration == 2:
                results["reward"] = iteration.evaluate()["eval/mean_reward"]
                iteration.save_checkpoint()
                results["n_checkpoints"] = len(list_checkpoints(iteration.run_dir / "checkpoints"))
                action, _ = iteration.model().predict(iteration.rollout.observations[""][0, 0])
                results["action"] = action

    result = train(3, hooks=[Evaluates()], checkpoint_freq=0)
    assert results["reward"] == metric_rows(result)[1]["eval/mean_reward"] and results["action"] in (0, 1)
    assert results["n_checkpoints"] == 1, "the checkpoint is saved after all hooks were called, with their state"
    assert {int(path.name.removeprefix("ckpt-")) for path in list_checkpoints(Path("run/checkpoints"))} == {0, 128, 192}
    assert "eval/mean_reward" not in metric_rows(result)[-1], "with eval_freq 0 only the hook evaluates"


def test_the_first_stop_reason_is_kept_and_the_final_policy_is_evaluated():
    class First(corral.Hook):
        def after_iteration(self, iteration):
            if iteration.iteration == 2:
                iteration.stop("first")

    class Second(corral.Hook):
        def after_iteration(self, iteration):
            iteration.stop("second") if iteration.iteration == 2 else None

    result = train(9, hooks=[First(), Second()], eval_freq=100_000)
    assert (result.summary.exit_reason, result.summary.steps) == ("first", 128)
    assert "eval/mean_reward" in metric_rows(result)[-1]
    with pytest.raises(UsageError, match="stop"):
        train(2, "other", callback=lambda iteration: iteration.stop(""))


class Raises(StatefulHook):
    """Raises in the third iteration, after it has changed its state."""

    name = "Raises"

    def after_iteration(self, iteration):
        super().after_iteration(iteration)
        if iteration.iteration == 3:
            raise RuntimeError("of the hook")


def test_when_a_hook_raises_the_metrics_row_and_a_checkpoint_are_saved_and_the_traceback_is_kept():
    last_calls = []

    class Last(corral.Hook):
        def after_iteration(self, iteration):
            last_calls.append(iteration.iteration)

        def on_end(self, end):
            last_calls.append(end.reason)

    with pytest.raises(RuntimeError, match="of the hook") as raised:
        train(9, hooks=[StatefulHook(), Raises(), Last()])
    assert raised.traceback[-1].path == Path(__file__)
    assert last_calls == [1, 2, None], "later hooks are not called for that iteration, but their on_end is"
    assert len(read_metrics(Path("run/metrics.jsonl"))) == 3
    assert "failed: RuntimeError" in Path("run/summary.json").read_text()
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert saved.timesteps == 3 * ITERATION
    assert len(saved.state["hooks"]["StatefulHook"]["drawn"]) == 3
    assert len(saved.state["hooks"]["Raises"]["drawn"]) == 2, "the state from before the call that raised is saved"


def test_an_exception_in_on_end_is_raised_after_the_summary_is_written():
    class End(corral.Hook):
        def on_end(self, end):
            raise OSError("of the end")

    ended = []

    class Other(corral.Hook):
        def on_end(self, end):
            ended.append(end.reason)

    with pytest.raises(OSError, match="of the end") as raised:
        train(2, hooks=[Other(), End()])
    assert ended == ["timesteps"]
    assert "raised by on_end of the hook End" in raised.value.__notes__
    assert json.loads(Path("run/summary.json").read_text())["exit_reason"] == "timesteps"


def test_resume_requires_the_hooks_recorded_in_the_config():
    train(2, hooks=[StatefulHook()])
    assert "StatefulHook" in Path("run/config.yaml").read_text().splitlines()[-1]
    with pytest.raises(UsageError, match=r"only Python can give: corral.resume\(run, hooks=\[\.\.\.\]\)"):
        corral.resume("run", timesteps=256, quiet=True)
    corral.load("run")  # loading needs no hooks
    with pytest.raises(UsageError, match="only Python can give"):
        corral.resume("run", timesteps=256, hooks=[Raises()], quiet=True)


class Renamed(StatefulHook):
    """The same hook under another name, so that the state saved by the original is not its state."""


def test_saved_state_without_its_hook_is_an_error_and_a_hook_without_saved_state_a_warning(capsys):
    train(2, hooks=[StatefulHook()])
    hook_with_another_name = StatefulHook()
    hook_with_another_name.name = "another"
    with pytest.raises(UsageError, match="has the state of a hook called 'StatefulHook', which was not given"):
        corral.resume("run", timesteps=256, hooks=[hook_with_another_name], quiet=True)
    added_hook = Renamed()
    corral.resume("run", timesteps=256, hooks=[StatefulHook(), added_hook])
    assert "the checkpoint has no state of the hook Renamed, which starts without one" in capsys.readouterr().err
    assert len(added_hook.drawn) == 2
    # The run has both hooks from now on.
    corral.resume("run", timesteps=320, hooks=[StatefulHook(), Renamed()], quiet=True)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"drawn": torch.zeros(2)}, "should return plain JSON data"),
        ({"drawn": (1, 2)}, "lists rather than tuples"),
        ({1: 2}, "text for keys"),
        ({"drawn": float("nan")}, "should return plain JSON data"),
        ([1], "expected a dict"),
        (None, "expected a dict"),
    ],
)
def test_hook_state_that_is_not_plain_json_is_refused(state, message):
    class Odd(corral.Hook):
        def state_dict(self):
            return state

    with pytest.raises(UsageError, match=f"hook Odd: state_dict.*{message}"):
        train(2, hooks=[Odd()])


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ([StatefulHook(), StatefulHook()], "two hooks are called 'StatefulHook'"),
        ([StatefulHook], r"give an instance, as in hooks=\[MyHook\(\)\]"),
        ([print], "derive it from corral.Hook"),
        (StatefulHook(), "should be a list of hooks"),
        (["nowhere:Hook"], "no module named 'nowhere'"),
        (["hooks_without_colon"], "should look like package.module:callable"),
        (["tests.training.hooks.test_user_hooks:SMALL"], "expected something callable"),
        (["tests.training.hooks.test_user_hooks:train"], "is made without arguments, but"),
    ],
)
def test_invalid_hooks_are_refused_before_anything_is_written(hooks, message):
    with pytest.raises(UsageError, match=message):
        train(2, hooks=hooks)
    assert not Path("run").exists()


HOOK_FILE = """
import corral

class Count(corral.Hook):
    n = 0
    def after_iteration(self, iteration):
        self.n += 1
        iteration.log("count/n", self.n)
    def state_dict(self):
        return {"n": self.n}
    def load_state_dict(self, state):
        self.n = state["n"]
"""


def test_hooks_given_on_the_command_line_must_be_repeated_on_resume(capsys):
    from corral.cli.main import main

    Path("my_hooks.py").write_text(HOOK_FILE)
    flags = ["--n-envs=2", "--n-steps=32", "--batch-size=32", "--backend=serial", "--no-tensorboard", "--eval-freq=0"]
    command = ["train", "CartPole-v1", "--timesteps", "128", "--output-dir", "run", *flags]
    assert main([*command, "--hook", "my_hooks.py:Count"]) == 0
    assert "resume run --hook my_hooks.py:Count --timesteps 256" in capsys.readouterr().out
    assert main(["resume", "run", "--timesteps", "192"]) == 2
    assert "repeat it: " in (errors := capsys.readouterr().err) and errors.rstrip().endswith("--hook my_hooks.py:Count")
    assert main(["eval", "run", "--episodes", "1"]) == 0
    sys.modules.pop("my_hooks", None)
    assert main(["resume", "run", "--timesteps", "256", "--hook", "my_hooks.py:Count"]) == 0
    assert [row["count/n"] for row in read_metrics(Path("run/metrics.jsonl"))] == [1, 2, 3, 4]
    with pytest.raises(CodeNotConfirmed, match=r"--hook my_hooks\.py:Count"):
        corral.resume("run", timesteps=512, quiet=True)
    for hook in ("my_hooks.py:Count", StatefulHook()):
        with pytest.raises(UsageError, match="a sweep calls none"):
            corral.sweep("CartPole-v1", hooks=[hook], trials=1)


def test_hooks_named_in_a_config_file_are_called():
    Path("my_hooks.py").write_text(HOOK_FILE)
    for name, text in (("one", "hooks: my_hooks.py:Count\n"), ("list", "hooks: [my_hooks.py:Count]\n")):
        Path(f"{name}.yaml").write_text(text)
        assert metric_rows(train(1, name, config=f"{name}.yaml"))[0]["count/n"] == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("overrides", {"gamma": 0.5}, "'gamma' cannot change"),
        ("overrides", {"learning_rate": -1.0}, "learning_rate -1.0"),
        ("overrides", {"learning_rate": "x"}, "overrides/learning_rate"),
        ("hooks", {"StatefulHook": [1]}, "hooks/StatefulHook"),
        ("hooks", 3, "hooks"),
    ],
)
def test_tampered_hook_state_in_a_checkpoint_is_refused(key, value, message):
    from corral.storage.checkpoint import save_checkpoint

    train(2, hooks=[StatefulHook()])
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
    saved.state[key] = value
    save_checkpoint(Path("run/checkpoints"), saved)
    with pytest.raises(CheckpointError, match=f"state.json does not fit: .*{message}"):
        corral.resume("run", timesteps=256, hooks=[StatefulHook()], quiet=True)


def test_the_hook_used_by_the_kill_tests_changes_the_weights():
    """Tests in ``tests/faults`` kill runs with this hook and compare weights, so its state must affect the weights."""
    with_hook = train(4, "with", hooks=["tests.faults.hooks:Follow"])
    assert with_hook.summary.weights_sha256 != train(4, "without").summary.weights_sha256


# ---- edge cases ------------------------------------------------------------------------------------------------------


def test_the_state_given_to_a_callback_does_not_change_later():
    states = []
    train(3, callback=states.append)
    assert [(state.iteration, state.timesteps) for state in states] == [(1, 64), (2, 128), (3, 192)]


class Fades(corral.Hook):
    """Has a state that is empty after the first iteration."""

    def __init__(self):
        self.state = {"warm": 1}

    def after_iteration(self, iteration):
        self.state = {}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = dict(state)


def test_an_empty_hook_state_is_restored_as_empty():
    train(2, hooks=[Fades()])
    restored = Fades()

    class Observes(corral.Hook):
        def on_start(self, start):
            assert restored.state == {}

    corral.resume("run", timesteps=192, hooks=[restored, Observes()], quiet=True)


def test_a_callback_does_not_overwrite_the_state_of_a_hook_named_CallbackHook():
    class CallbackHook(StatefulHook):
        pass

    train(2, hooks=[CallbackHook()], callback=lambda iteration: None)
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint.state["hooks"]
    assert [*saved] == ["CallbackHook"] and len(saved["CallbackHook"]["drawn"]) == 2


@pytest.mark.parametrize("name", [3, "", "two\nlines"])
def test_a_hook_name_must_be_printable_text(name):
    hook = StatefulHook()
    hook.name = name
    with pytest.raises(UsageError, match="a hook is called"):
        train(2, hooks=[hook])


def test_hook_state_too_large_for_a_checkpoint_is_refused():
    class Large(corral.Hook):
        def state_dict(self):
            return {"text": "x" * (1 << 23)}

    with pytest.raises(UsageError, match=r"hook Large: state_dict\(\) has 8,388,\d+ bytes, of at most"):
        train(2, hooks=[Large()])


def test_settings_changed_by_a_hook_call_that_raised_are_not_saved():
    class SetsAndRaises(corral.Hook):
        def after_iteration(self, iteration):
            if iteration.iteration == 2:
                iteration.set("learning_rate", 1e-9)
                iteration.evaluate()
                raise RuntimeError("after that")

    with pytest.raises(RuntimeError):
        train(9, hooks=[SetsAndRaises()])
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert saved.timesteps == 128 and "overrides" not in saved.state


def test_the_kl_reference_is_the_policy_that_the_run_starts_from():
    references = {}

    class HalvesWeights(corral.Hook):
        def on_start(self, start):
            with torch.no_grad():
                for weight in start.run.learner.policy.parameters():
                    weight.mul_(0.5)

        def after_iteration(self, iteration):
            references["halved"] = iteration.run.learner.reference

    train(1, "halved", hooks=[HalvesWeights()], kl_ref_coef=0.1, learner="torch")
    train(
        1, "plain", callback=lambda iteration: references.update(plain=iteration.run.learner.reference), kl_ref_coef=0.1
    )
    assert all(torch.equal(references["halved"][name], 0.5 * weight) for name, weight in references["plain"].items())


def test_a_hook_can_stop_a_resumed_run_in_on_start_because_of_its_restored_state():
    class StopsWhenDone(StatefulHook):
        def on_start(self, start):
            if len(self.drawn) >= 2:
                start.stop("done")

    train(2, hooks=[StopsWhenDone()])
    result = corral.resume("run", timesteps=640, hooks=[StopsWhenDone()], quiet=True)
    assert (result.summary.exit_reason, result.summary.steps) == ("done", 128)


def test_on_end_is_called_for_started_hooks_if_on_start_of_another_raises():
    calls = []

    class Fails(corral.Hook):
        def on_start(self, start):
            raise RuntimeError("cannot start")

    with pytest.raises(RuntimeError, match="cannot start"):
        train(2, hooks=[StatefulHook(calls), Fails()])
    assert calls == [("start", False, 0), ("end", None, 0)]


def test_exceptions_in_on_end_are_reported_when_the_run_has_already_failed(capsys):
    class BadEnd(corral.Hook):
        def on_end(self, end):
            raise OSError("of the end")

    with pytest.raises(RuntimeError, match="of the hook"):
        train(9, hooks=[Raises(), BadEnd()], quiet=False)
    assert "OSError: of the end (raised by on_end of the hook BadEnd)" in " ".join(capsys.readouterr().err.split())


def test_an_exception_in_load_state_dict_names_the_hook():
    class Picky(StatefulHook):
        def load_state_dict(self, state):
            raise KeyError("other")

    train(2, hooks=[Picky()])
    with pytest.raises(CheckpointError, match=r"hook Picky: load_state_dict\(\) raised KeyError"):
        corral.resume("run", timesteps=640, hooks=[Picky()], quiet=True)


def test_resume_asks_only_for_the_missing_hooks():
    Path("my_hooks.py").write_text(HOOK_FILE + "\nclass Other(Count):\n    pass\n")
    train(2, hooks=["my_hooks.py:Count", "my_hooks.py:Other"])
    with pytest.raises(CodeNotConfirmed, match=r"repeat it: --hook my_hooks\.py:Other$"):
        corral.resume("run", timesteps=640, hooks=["my_hooks.py:Count"], quiet=True)
    with pytest.raises(CodeNotConfirmed):
        corral.resume("run", timesteps=640, hooks=None, quiet=True)
    with pytest.raises(UsageError, match="should be a list of hooks"):
        corral.resume("run", timesteps=640, hooks=StatefulHook(), quiet=True)


def test_a_config_that_names_python_hook_objects_is_refused_for_a_new_run():
    train(2, hooks=[StatefulHook()])
    with pytest.raises(UsageError, match="is an object that only Python can give"):
        train(2, "other", config="run/config.yaml")


def test_a_resumed_run_prints_settings_changed_by_hooks(capsys):
    train(2, callback=lambda iteration: iteration.set("learning_rate", 0.002))
    corral.resume("run", timesteps=192)
    assert "settings that a hook has changed: learning_rate 0.002" in capsys.readouterr().out


@pytest.mark.parametrize("hooks", [["\x1b[2J"], ["a\0b"], ["x" * 5000], ["a.py:B"] * 101])
def test_invalid_hook_names_in_a_config_are_refused_with_a_printable_message(hooks):
    train(2)
    config = Path("run/config.yaml")
    config.write_text(config.read_text() + f"hooks: {json.dumps(hooks)}\n")
    with pytest.raises(UsageError, match="hooks") as raised:
        corral.resume("run", timesteps=640, quiet=True)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("section", ["settings", "presets"])
def test_resuming_a_sweep_with_tampered_hooks_imports_no_code(section):
    Path("evil.py").write_text("raise SystemExit('imported')")
    corral.sweep("CartPole-v1", presets={"A": {"n_epochs": 1}}, timesteps=64, n_envs=2, n_steps=32, output_dir="swept")
    file = Path("swept/sweep.yaml")
    request = yaml.safe_load(file.read_text())
    (request["settings"] if section == "settings" else request["presets"]["A"])["hooks"] = ["evil.py:Hook"]
    file.write_text(yaml.safe_dump(request))
    for trial in Path("swept").glob("trials/*"):
        shutil.rmtree(trial)
    with pytest.raises(UsageError, match="a sweep calls none"):
        resume_sweep("swept")


# ---- failures in on_start and on_end ---------------------------------------------------------------------------------


class RaisesInStep(gym.Wrapper):
    """An env that raises in every step."""

    def step(self, action):
        raise RuntimeError("of the env")


def test_weights_set_in_on_start_are_saved_when_the_first_env_step_raises():
    class Pretrains(corral.Hook):
        def on_start(self, start):
            with torch.no_grad():
                for weight in start.run.learner.policy.parameters():
                    weight.fill_(0.25)

    def make():
        return RaisesInStep(gym.make("CartPole-v1"))

    with pytest.raises(EnvFault):
        corral.train(make, timesteps=128, output_dir="run", hooks=[Pretrains()], **SMALL)
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert all(bool((weight == 0.25).all()) for name, weight in saved.policy.items() if name.endswith("bias"))
    with pytest.raises(EnvFault):
        corral.train(make, timesteps=128, output_dir="plain", **SMALL)
    assert not Path("plain/checkpoints").exists(), "a run that has only its random initial weights saves no checkpoint"


class CannotStart(corral.Hook):
    """Raises in ``on_start``, which is called before the first rollout."""

    def on_start(self, start):
        raise RuntimeError("cannot start")


def test_a_run_whose_new_hook_raises_in_on_start_can_be_resumed_without_it():
    train(2)
    with pytest.raises(RuntimeError, match="cannot start"):
        corral.resume("run", timesteps=192, hooks=[CannotStart()], quiet=True)
    assert "CannotStart" not in Path("run/config.yaml").read_text()
    assert corral.resume("run", quiet=True).summary.steps == 192, "the new budget is kept"


def test_hooks_that_a_config_cannot_contain_are_refused_on_resume_too():
    train(2)
    Path("odd\x1b.py").write_text(HOOK_FILE)
    with pytest.raises(UsageError, match="hooks"):
        corral.resume("run", timesteps=192, hooks=["odd\x1b.py:Count"], quiet=True)
    many = [type(f"Hook{i}", (corral.Hook,), {})() for i in range(101)]
    with pytest.raises(UsageError, match="hooks"):
        corral.resume("run", timesteps=192, hooks=many, quiet=True)
    assert corral.resume("run", timesteps=192, quiet=True).summary.steps == 192


def test_on_end_is_called_for_every_started_hook_even_if_other_hooks_raise(capsys):
    class NoState(corral.Hook):
        def state_dict(self):
            return {"best": float("-inf")}

    class Exits(corral.Hook):
        def on_end(self, end):
            raise SystemExit("of the end")

    class AlsoRaises(corral.Hook):
        def on_end(self, end):
            raise OSError("of another end")

    calls = []
    with pytest.raises(UsageError, match="NoState"):
        train(2, hooks=[StatefulHook(calls), NoState()])
    assert calls == [("start", False, 0), ("end", None, 0)]
    calls.clear()
    with pytest.raises(OSError, match="of another end"):
        train(2, "exits", hooks=[StatefulHook(calls), AlsoRaises(), Exits()], quiet=False)
    assert calls[-1] == ("end", "timesteps", 2)
    assert "SystemExit: of the end (raised by on_end of the hook Exits)" in " ".join(capsys.readouterr().err.split())
    assert json.loads(Path("exits/summary.json").read_text())["exit_reason"] == "timesteps"


def test_changes_made_in_on_start_of_a_resumed_run_are_saved():
    class HalvesWhenResumed(StatefulHook):
        def on_start(self, start):
            if start.resumed:
                self.drawn = [7]
                with torch.no_grad():
                    for weight in start.run.learner.policy.parameters():
                        weight.mul_(0.5)
                start.stop("changed")

    train(2, hooks=[HalvesWhenResumed()])
    result = corral.resume("run", timesteps=640, hooks=[HalvesWhenResumed()], quiet=True)
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert saved.state["hooks"]["HalvesWhenResumed"]["drawn"] == [7]
    assert weights_hash(saved.policy) == result.summary.weights_sha256


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (3, r"log\(3"),
        ("a\nb", "should be a name"),
        ("", "should be a name"),
        ("eval/mean_reward", "metric that Corral writes"),
        ("info/x", "metric that Corral writes"),
    ],
)
def test_invalid_or_reserved_metric_names_are_refused(name, message):
    with pytest.raises(UsageError, match=message):
        train(1, callback=lambda iteration: iteration.log(name, 1.0))


def test_a_hook_whose_constructor_raises_is_refused_with_its_traceback():
    Path("bad_hook.py").write_text(
        "import corral\n\nclass Bad(corral.Hook):\n    def __init__(self):\n        {}['x']\n"
    )
    with pytest.raises(UsageError, match=r"hook 'bad_hook.py:Bad' cannot be made: KeyError: 'x'") as raised:
        train(2, hooks=["bad_hook.py:Bad"])
    assert "in __init__" in str(raised.value)


def test_exceptions_in_on_end_are_reported_when_the_last_checkpoint_could_not_be_saved(capsys, monkeypatch):
    class BadEnd(corral.Hook):
        def on_end(self, end):
            raise OSError("of the end")

    def fail_to_save(directory, checkpoint):
        raise CheckpointError("not saved: the disk is full")

    monkeypatch.setattr("corral.training.run.save_checkpoint", fail_to_save)
    with pytest.raises(CheckpointError, match="could not be saved"):
        train(1, hooks=[BadEnd()], quiet=False)
    assert "OSError: of the end (raised by on_end of the hook BadEnd)" in " ".join(capsys.readouterr().err.split())


class Signalled(StatefulHook):
    """Sends SIGTERM to its process in the second iteration, inside or outside an ``interruptible`` block."""

    def __init__(self, interruptible):
        super().__init__()
        self.interruptible, self.completed = interruptible, False

    def after_iteration(self, iteration):
        super().after_iteration(iteration)
        if iteration.iteration == 2:
            with iteration.interruptible() if self.interruptible else contextlib.nullcontext():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)
                self.completed = True


@pytest.mark.parametrize("interruptible", [True, False])
def test_a_signal_takes_effect_at_once_only_in_an_interruptible_block(interruptible):
    hook = Signalled(interruptible)
    with pytest.raises(Interrupted):
        train(4, hooks=[hook])
    assert hook.completed is not interruptible
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert saved.timesteps == 2 * ITERATION
    assert len(saved.state["hooks"]["Signalled"]["drawn"]) == (1 if interruptible else 2), (
        "only complete calls are saved"
    )


def test_a_run_interrupted_in_on_start_can_be_resumed():
    class AtStart(corral.Hook):
        def on_start(self, start):
            with start.interruptible():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)

    train(2)
    with pytest.raises(Interrupted):
        corral.resume("run", timesteps=640, hooks=[AtStart()], quiet=True)
    assert corral.resume("run", timesteps=192, quiet=True).summary.steps == 192


class Pretrains(StatefulHook):
    """Sets all weights before the first rollout of a new or a resumed run, and records that in its state."""

    def __init__(self, resumed, calls=None):
        super().__init__(calls)
        self.resumed = resumed

    def on_start(self, start):
        super().on_start(start)
        if start.resumed is self.resumed:
            self.drawn.append(-1)
            with torch.no_grad():
                for weight in start.run.learner.policy.parameters():
                    weight.fill_(0.25)


@pytest.mark.parametrize("method", ["publish_weights", "take_recovery_point"])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_fails_after_on_start_never_saves_hook_state_without_the_matching_weights(
    method, resumed, monkeypatch
):
    if resumed:
        train(2, hooks=[Pretrains(resumed)])
    before = newest_checkpoint(Path("run/checkpoints")).checkpoint if resumed else None
    original, calls, hook = getattr(Run, method), [], Pretrains(resumed, hook_calls := [])

    def fail(run):
        calls.append(run)
        if len(calls) == (2 if method == "take_recovery_point" and not resumed else 1):
            raise MemoryError
        original(run)

    monkeypatch.setattr(Run, method, fail)
    with pytest.raises(MemoryError):
        corral.resume("run", timesteps=640, hooks=[hook], quiet=True) if resumed else train(2, hooks=[hook])
    assert hook_calls[-1][:2] == ("end", None)
    saved = newest_checkpoint(Path("run/checkpoints"))
    assert (saved is None) if before is None else (saved.checkpoint.state == before.state)


def test_on_end_is_called_when_the_last_checkpoint_raises(monkeypatch):
    original, calls = Run.save_recovery_point, []

    def fails_after_an_iteration(run, again=False):
        if run.progress.iteration:
            raise ValueError("of the save")
        original(run, again)

    monkeypatch.setattr(Run, "save_recovery_point", fails_after_an_iteration)
    with pytest.raises(ValueError, match="of the save"):
        train(2, hooks=[StatefulHook(calls)])
    assert calls == [("start", False, 0), ("end", None, 2)]


def test_a_failure_to_restore_the_config_does_not_hide_the_original_error(monkeypatch, capsys):
    from corral.training import run_session

    train(2)
    original, writes = run_session.replace_file, []

    def fail_second_config_write(path, data):
        writes.append(path.name)
        if writes.count("config.yaml") == 2:
            raise OSError(28, "No space left on device")
        original(path, data)

    monkeypatch.setattr(run_session, "replace_file", fail_second_config_write)
    with pytest.raises(RuntimeError, match="cannot start"):
        corral.resume("run", timesteps=640, hooks=[CannotStart()])
    assert "config.yaml cannot be written (No space left on device)" in " ".join(capsys.readouterr().err.split())


def test_a_run_without_checkpoints_can_be_resumed_after_a_hook_raised_in_on_start():
    train(2)
    shutil.rmtree("run/checkpoints")
    Path("run/metrics.jsonl").unlink()
    with pytest.raises(RuntimeError, match="cannot start"):
        corral.resume("run", hooks=[CannotStart()], quiet=True)
    assert corral.resume("run", quiet=True).summary.steps == 128


def test_a_new_run_with_an_invalid_hook_state_leaves_no_files():
    class NoState(corral.Hook):
        def state_dict(self):
            return {"best": float("-inf")}

    with pytest.raises(UsageError, match="NoState"):
        train(2, hooks=[NoState()])
    assert not Path("run").exists()


def test_changes_made_in_on_start_of_a_resumed_run_are_not_saved_before_the_first_iteration_ends():
    """A run that is killed repeatedly before its first new checkpoint resumes from the same weights each time."""
    train(2, hooks=[Pretrains(resumed=True)])
    hash_before = weights_hash(newest_checkpoint(Path("run/checkpoints")).checkpoint.policy)
    saved_hashes = []

    class Observes(corral.Hook):
        def after_iteration(self, iteration):
            saved_hashes.append(weights_hash(newest_checkpoint(iteration.run_dir / "checkpoints").checkpoint.policy))
            iteration.stop("observed")

    corral.resume("run", timesteps=640, hooks=[Pretrains(resumed=True), Observes()], quiet=True)
    assert saved_hashes == [hash_before]


def test_state_that_a_checkpoint_cannot_contain_is_reported_and_training_continues(capsys):
    class Breaks(corral.Hook):
        def after_iteration(self, iteration):
            iteration.run.progress.best_reward = float("inf") if iteration.iteration == 1 else None

    result = train(3, hooks=[Breaks()], checkpoint_freq=ITERATION, quiet=False)
    assert result.summary.steps == 3 * ITERATION
    assert "checkpoint not saved: state.json cannot hold" in " ".join(capsys.readouterr().err.split())


def test_resuming_a_finished_run_saves_changes_made_in_on_start():
    train(2, hooks=[Pretrains(resumed=True)])
    result = corral.resume("run", hooks=[Pretrains(resumed=True)], quiet=True)
    saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
    assert weights_hash(saved.policy) == result.summary.weights_sha256
    assert saved.state["hooks"]["Pretrains"]["drawn"][-1] == -1


class NoRollout(gym.Wrapper):
    """An env whose first step raises KeyboardInterrupt."""

    def step(self, action):
        raise KeyboardInterrupt


def test_repeated_resumes_from_step_0_that_are_interrupted_start_from_the_same_hook_state():
    def make():
        return NoRollout(gym.make("CartPole-v1"))

    with pytest.raises(KeyboardInterrupt):
        corral.train(make, timesteps=128, output_dir="run", hooks=[Pretrains(resumed=True)], **SMALL)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            corral.resume("run", env=make, hooks=[Pretrains(resumed=True)], quiet=True)
        saved = newest_checkpoint(Path("run/checkpoints")).checkpoint
        assert saved.timesteps == 0 and saved.state["hooks"]["Pretrains"]["drawn"] == []


def test_if_metrics_files_cannot_be_opened_no_new_run_is_left_and_no_hook_is_added(monkeypatch):
    from corral.training import run_session

    def fail_to_open(*args):
        raise OSError(28, "No space left on device", "run/metrics.jsonl")

    train(2)
    with monkeypatch.context() as patch:
        patch.setattr(run_session, "WriterContext", fail_to_open)
        with pytest.raises(UsageError, match=r"run/metrics.jsonl cannot be written to: No space left"):
            corral.resume("run", timesteps=192, hooks=[StatefulHook()], quiet=True)
        with pytest.raises(UsageError, match="cannot be written to"):
            train(2, "new")
    assert not Path("new").exists()
    assert corral.resume("run", quiet=True).summary.steps == 192
