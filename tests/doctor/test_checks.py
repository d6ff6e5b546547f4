"""``corral doctor`` finds what is wrong with an env and says how to fix it."""

import os
import random
import re
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from corral.doctor.checks import examine
from tests.toy_envs import Broken, Counter, Forgetful, Hoarder, Masked, Spaces, Stateful


def findings_by_check(env):
    """Return all findings about an env, by the name of the check."""
    return {f.what: f for f in examine(env, {}, n_envs=4, steps=200)}


def check_env(env, check, steps=200):
    """Return the finding of one check of an env."""
    return next(f for f in examine(env, {}, n_envs=4, steps=steps) if f.what == check)


@pytest.mark.parametrize("env", ["CartPole-v1", "toy-maze", "toy-everything"])
def test_healthy_envs_pass(env):
    findings = findings_by_check(env)
    assert {f.level for f in findings.values()} == {"pass"}, findings
    assert set(findings) == {
        "factory pickles",
        "a fresh process can make and reset it",
        "returned data fits the spaces",
        "action masks",
        "episodes end",
        "scale of the numbers",
        "speed of a step",
        "same seed, same episode",
        "other seed, other episode",
        "memory",
        "open files",
    }


@pytest.mark.parametrize(
    ("env", "check", "level", "message"),
    [
        (lambda: Broken("constructor"), "a fresh process can make and reset it", "fail", "no rom found"),
        (lambda: Broken("nan"), "returned data fits the spaces", "fail", "not finite"),
        (lambda: Broken("four"), "returned data fits the spaces", "fail", "tuple of 4"),
        (lambda: Broken("float64"), "returned data fits the spaces", "warn", "float64 where the space says float32"),
        (lambda: Masked("info", "empty"), "returned data fits the spaces", "fail", "forbids every action"),
        (Forgetful, "same seed, same episode", "fail", "different ways"),
        (Hoarder, "same seed, same episode", "warn", "depends on"),
        (Hoarder, "other seed, other episode", "warn", "same episode"),
        (lambda: Counter(length=10**9), "episodes end", "warn", "none ended"),
        (lambda: Counter(length=100), "scale of the numbers", "warn", "rewards from 1 to 100"),
        (
            lambda: Spaces(spaces.Box(0, 255, (90,), np.uint8), spaces.Discrete(2)),
            "scale of the numbers",
            "warn",
            "observations up to 255",
        ),
    ],
)
def test_a_fault_of_an_env_is_found_with_a_remedy(env, check, level, message):
    finding = check_env(env, check)
    assert finding.level == level and message in finding.result and finding.remedy


def test_a_factory_that_returns_the_same_env_again_is_found():
    shared_env = Counter()
    failures = [f for f in examine(lambda: shared_env, {}, n_envs=4, steps=50) if f.level == "fail"]
    assert [(f.what, "same env object" in f.result, bool(f.remedy)) for f in failures] == [("a second env", True, True)]


def test_a_state_that_cannot_be_read_or_restored_is_found():
    class GetStateRaises(Stateful):
        def get_state(self):
            raise KeyError("step")

    class SetStateRaises(Stateful):
        def set_state(self, state):
            raise KeyError("step")

    class StepRaisesAfterSetState(Stateful):
        def set_state(self, state):
            self.step_count = None

    for env, level, message in (
        (GetStateRaises, "warn", "get_state() raised KeyError"),
        (SetStateRaises, "fail", "set_state() raised KeyError"),
        (StepRaisesAfterSetState, "fail", "after set_state(), the env raised TypeError"),
    ):
        finding = check_env(env, "get_state and set_state")
        assert finding.level == level and message in finding.result and finding.remedy, env


def test_observations_outside_their_bounds_give_a_warning():
    class OutsideBounds(Counter):
        def __init__(self):
            super().__init__()
            self.observation_space = type(self.observation_space)(-1, 1, (2,), np.float32)

    finding = check_env(OutsideBounds, "returned data fits the spaces")
    assert finding.level == "warn" and "outside the bounds" in finding.result


class RandomAfterStep150(Counter):
    """Is deterministic up to step 150 and random after it."""

    def _observe(self):
        number = random.SystemRandom().random() if self.step_count > 150 else 0.5
        return np.array([number, self.step_count], np.float32)


def test_the_determinism_check_says_how_much_it_compared_and_finds_late_differences():
    check = "same seed, same episode"
    nondeterministic = check_env(lambda: RandomAfterStep150(length=400), check)
    assert nondeterministic.level == "fail" and "at step 151 of episode 0" in nondeterministic.result
    deterministic = check_env(lambda: Counter(length=40), check)
    steps, episodes, longest = map(int, re.findall(r"\d+", deterministic.result.replace(",", "")))
    assert deterministic.level == "pass" and longest == 40, deterministic.result
    assert (episodes - 1) * 40 < steps <= episodes * 40, deterministic.result


@pytest.mark.parametrize("ever", [False, True], ids=["one at a time", "one ever"])
@pytest.mark.parametrize(("aborts", "cause"), [(False, "FileExistsError"), (True, "exited with code 9")])
def test_an_env_that_allows_one_instance_per_process_passes_with_advice(tmp_path, ever, aborts, cause):
    class OnePerProcess(Stateful):
        def __init__(self):
            super().__init__(30)
            self.file = tmp_path / str(os.getpid())
            if aborts and self.file.exists():
                os._exit(9)
            self.file.touch(exist_ok=False)

        def step(self, action):
            return Counter.step(self, action)

        def close(self):
            if not ever:
                self.file.unlink()

    findings = findings_by_check(OnePerProcess)
    assert {f.what for f in findings.values() if f.level == "fail"} == set(), findings
    assert findings["same seed, same episode"].level == findings["get_state and set_state"].level == "pass"
    assert f"a second env in the same process fails: {'the worker' if aborts else ''}" in findings["memory"].result
    assert cause in findings["memory"].result and "--num-workers" in findings["memory"].remedy


def test_an_env_that_allows_one_instance_per_process_must_be_deterministic():
    class OnePerProcess(Counter):
        made = False

        def __init__(self):
            assert not OnePerProcess.made
            OnePerProcess.made = True
            super().__init__()

        def _observe(self):
            return np.array([random.random(), self.step_count], np.float32)

    finding = check_env(OnePerProcess, "same seed, same episode")
    assert finding.level == "fail" and "different ways" in finding.result


@pytest.mark.parametrize(
    ("how", "cause"), [("os_exit", "exited with code 7"), ("kill", "SIGKILL"), ("sleep", "sign of life")]
)
def test_an_env_that_ends_or_hangs_its_process_gives_a_finding(monkeypatch, how, cause):
    monkeypatch.setattr("corral.processes.hang_detector._MIN_TIMEOUT", 1.0)
    finding = list(examine("tests.faults.games:AlwaysFails", {"how": how, "where": "step"}, n_envs=4, steps=200))[-1]
    assert finding.level == "fail" and finding.what == "returned data fits the spaces", finding
    assert cause in finding.result, finding


@pytest.mark.parametrize("waits", [False, True], ids=["computes", "waits"])
def test_steps_of_very_different_duration_give_a_warning(waits):
    class Uneven(Counter):
        def step(self, action):
            if self.step_count % 5 == 4:
                if waits:
                    time.sleep(0.003)
                end = time.process_time() + 0.003
                while not waits and time.process_time() < end:
                    pass
            return super().step(action)

    finding = check_env(Uneven, "speed of a step")
    assert finding.level == "warn" and "steps vary a lot" in finding.remedy, finding


def test_get_state_and_set_state_are_checked():
    class RestoresWrongState(Stateful):
        def set_state(self, state):
            super().set_state(state)
            self.draw = 0.5
            self.step_count += 1

    class StateIsNoBytes(Stateful):
        def get_state(self):
            return {"steps": self.step_count}

    check = "get_state and set_state"
    assert check_env(lambda: Stateful(500), check, 20).level == "pass"
    assert check_env(lambda: RestoresWrongState(500), check, 20).level == "fail"
    assert "no bytes" in check_env(lambda: StateIsNoBytes(500), check, 20).result
    wrapped = check_env(lambda: gym.wrappers.TimeLimit(Stateful(500), 50), check, 20)
    assert wrapped.level == "warn" and "a wrapper" in wrapped.result
    assert check not in findings_by_check(Counter)
