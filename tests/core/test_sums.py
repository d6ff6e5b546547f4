"""Sums of floats on which a game depends are rounded in the same way by every version of Python."""

import builtins
import random

import numpy as np
import pytest

import corral
from corral.core.sums import add_up, parse_mix
from corral_games.card_battle.bots.board_value import life_value


def test_floats_are_added_from_left_to_right():
    rng = random.Random(0)
    for _ in range(200):
        numbers = [rng.uniform(-1, 1) * 10 ** rng.randint(-3, 3) for _ in range(20)]
        total = 0.0
        for number in numbers:
            total += number
        assert add_up(numbers) == total
    assert add_up([0.1] * 10) == 0.9999999999999999, "a sum with compensated rounding is 1.0"


@pytest.fixture
def _refuse_builtin_sum_of_floats(monkeypatch):
    """Make the built-in ``sum`` refuse floats, because its rounding has changed with Python 3.12."""
    builtin_sum = builtins.sum

    def sum_without_floats(numbers, /, start=0):
        numbers = list(numbers)
        assert not any(isinstance(number, float) for number in numbers), f"sum of floats: {numbers[:5]}"
        return builtin_sum(numbers, start)

    life_value.cache_clear()
    monkeypatch.setattr(builtins, "sum", sum_without_floats)


def play(env, steps, **options):
    """Take random legal actions for some steps."""
    rng, episode_ended = np.random.default_rng(0), True
    for step in range(steps):
        if episode_ended:
            env.reset(seed=step, options=options or None)
        masks = env.get_wrapper_attr("action_masks")() if env.has_wrapper_attr("action_masks") else None
        legal = range(env.action_space.n) if masks is None else np.flatnonzero(masks)
        *_, terminated, truncated, _ = env.step(int(rng.choice(legal)))
        episode_ended = terminated or truncated


@pytest.mark.usefixtures("_refuse_builtin_sum_of_floats")
def test_games_never_use_the_builtin_sum_of_floats():
    env = corral.make_env("card-battle")
    for opponent in env.get_wrapper_attr("opponents"):
        play(env, 40, opponent=opponent)
    play(corral.make_env("territory"), 20)
    assert [life_value(life) for life in (0, 3, 60)]
    assert parse_mix("mixed:a=0.1,b=0.2,c=0.7") == {"a": 0.1 / 1.0, "b": 0.2 / 1.0, "c": 0.7 / 1.0}
