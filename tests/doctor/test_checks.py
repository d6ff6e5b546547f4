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


def findings(env):
    return {f.what: f for f in examine(env, {}, n_envs=4, steps=200)}


def finding(env, what, steps=200):
    return next(f for f in examine(env, {}, n_envs=4, steps=steps) if f.what == what)


@pytest.mark.parametrize("env", ["CartPole-v1", "toy-maze", "toy-everything"])
def test_healthy_envs_pass(env):
    found = findings(env)
    assert {f.level for f in found.values()} == {"pass"}, found
    assert set(found) == {
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
    ("env", "what", "level", "seen"),
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
def test_what_is_wrong_is_found_with_a_remedy(env, what, level, result):
    found = finding(env, what)
    assert found.level == level and result in found.result and found.remedy


def test_one_env_that_is_returned_again_and_again_is_found():
    one = Counter()
    found = [f for f in examine(lambda: one, {}, n_envs=4, steps=50) if f.level == "fail"]
    assert [(f.what, "same env object" in f.result, bool(f.remedy)) for f in found] == [("a second env", True, True)]


def test_a_state_that_cannot_be_told_or_set_is_found():
    class Silent(Stateful):
        def get_state(self):
            raise KeyError("step")

    class Refusing(Stateful):
        def set_state(self, state):
            raise KeyError("step")

    class PeerStalled(Stateful):
        def set_state(self, state):
            self.step_count = None

    for env, level, result in (
        (Silent, "warn", "get_state() raised KeyError"),
        (Refusing, "fail", "set_state() raised KeyError"),
        (PeerStalled, "fail", "after set_state(), the env raised TypeError"),
    ):
        found = finding(env, "get_state and set_state")
        assert found.level == level and result in found.result and found.remedy, env


def test_values_outside_their_bounds_are_mentioned():
    class Outside(Counter):
        def __init__(self):
            super().__init__()
            self.observation_space = type(self.observation_space)(-1, 1, (2,), np.float32)

    found = finding(Outside, "returned data fits the spaces")
    assert found.level == "warn" and "outside the bounds" in found.result


class LateSurprise(Counter):
    """Repeats itself up to step 150, and not after that."""

    def _observe(self):
        number = random.SystemRandom().random() if self.step_count > 150 else 0.5
        return np.array([number, self.step_count], np.float32)


def test_it_says_how_much_was_compared_and_sees_what_differs_late():
    what = "same seed, same episode"
    late = finding(lambda: LateSurprise(length=400), what)
    assert late.level == "fail" and "at step 151 of episode 0" in late.result
    same = finding(lambda: Counter(length=40), what)
    steps, episodes, longest = map(int, re.findall(r"\d+", same.result.replace(",", "")))
    assert same.level == "pass" and longest == 40 and (episodes - 1) * 40 < steps <= episodes * 40, same.result


@pytest.mark.parametrize("ever", [False, True], ids=["at a time", "ever"])
@pytest.mark.parametrize(("aborts", "cause"), [(False, "FileExistsError"), (True, "exited with code 9")])
def test_an_env_of_which_a_process_can_have_one_is_examined_too(tmp_path, ever, aborts, cause):
    class OnlyOne(Stateful):
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

    found = findings(OnlyOne)
    assert {f.what for f in found.values() if f.level == "fail"} == set(), found
    assert found["same seed, same episode"].level == found["get_state and set_state"].level == "pass"
    assert f"a second env in the same process fails: {'the worker' if aborts else ''}" in found["memory"].result
    assert cause in found["memory"].result and "--num-workers" in found["memory"].remedy


def test_an_env_of_which_a_process_can_make_one_ever_must_repeat_itself_too():
    class OneEver(Counter):
        made = False

        def __init__(self):
            assert not OneEver.made
            OneEver.made = True
            super().__init__()

        def _observe(self):
            return np.array([random.random(), self.step_count], np.float32)

    found = finding(OneEver, "same seed, same episode")
    assert found.level == "fail" and "different ways" in found.result


@pytest.mark.parametrize(
    ("how", "cause"), [("os_exit", "exited with code 7"), ("kill", "SIGKILL"), ("sleep", "sign of life")]
)
def test_an_env_that_ends_or_hangs_its_process_is_a_finding(monkeypatch, how, cause):
    monkeypatch.setattr("corral.processes.supervision._MIN_TIMEOUT", 1.0)
    found = list(examine("tests.faults.games:Always", {"how": how, "where": "step"}, n_envs=4, steps=200))[-1]
    assert found.level == "fail" and found.what == "returned data fits the spaces" and cause in found.result, found


@pytest.mark.parametrize("waits", [False, True], ids=["computes", "waits"])
def test_steps_that_vary_are_mentioned(waits):
    class Uneven(Counter):
        def step(self, action):
            if self.step_count % 5 == 4:
                if waits:
                    time.sleep(0.003)
                end = time.process_time() + 0.003
                while not waits and time.process_time() < end:
                    pass
            return super().step(action)

    found = finding(Uneven, "speed of a step")
    assert found.level == "warn" and "steps vary a lot" in found.remedy, found


def test_states_are_tried_out():
    class Forgets(Stateful):
        def set_state(self, state):
            super().set_state(state)
            self.draw = 0.5
            self.step_count += 1

    class Says(Stateful):
        def get_state(self):
            return {"steps": self.step_count}

    what = "get_state and set_state"
    assert finding(lambda: Stateful(500), what, 20).level == "pass"
    assert finding(lambda: Forgets(500), what, 20).level == "fail"
    assert "no bytes" in finding(lambda: Says(500), what, 20).result
    wrapped = finding(lambda: gym.wrappers.TimeLimit(Stateful(500), 50), what, 20)
    assert wrapped.level == "warn" and "a wrapper" in wrapped.result
    assert what not in findings(Counter)
