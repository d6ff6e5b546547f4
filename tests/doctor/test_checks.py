import gymnasium as gym
import numpy as np
import pytest

from corral.doctor.checks import examine
from tests.envs import Broken, Counter, Forgetful, Hoarder, Masked, Stateful


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
        (Hoarder, "same seed, same episode", "warn", "remembers"),
        (Hoarder, "other seed, other episode", "warn", "same episode"),
        (lambda: Counter(length=10**9), "episodes end", "warn", "none ended"),
        (lambda: Counter(length=100), "scale of the numbers", "warn", "rewards from 1 to 100"),
    ],
)
def test_what_is_wrong_is_found_with_a_remedy(env, what, level, seen):
    found = finding(env, what)
    assert found.level == level and seen in found.seen and found.remedy


def test_values_outside_their_bounds_are_mentioned():
    class Outside(Counter):
        def __init__(self):
            super().__init__()
            self.observation_space = type(self.observation_space)(-1, 1, (2,), np.float32)

    found = finding(Outside, "returned data fits the spaces")
    assert found.level == "warn" and "outside the bounds" in found.seen


def test_states_are_tried_out(monkeypatch):
    monkeypatch.setattr("tests.envs.time.sleep", lambda seconds: None)

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
    assert "no bytes" in finding(lambda: Says(500), what, 20).seen
    wrapped = finding(lambda: gym.wrappers.TimeLimit(Stateful(500), 50), what, 20)
    assert wrapped.level == "warn" and "a wrapper" in wrapped.seen
    assert what not in findings(Counter)
