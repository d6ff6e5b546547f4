import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import corral
from corral.core.errors import UsageError


def play(env, answer, seed=0):
    """An episode: rewards, and how often each action was legal."""
    observation, _ = env.reset(seed=seed)
    cue, rewards, done = int(observation.argmax()), [], False
    while not done:
        action = env.action_space.n - 1
        if observation[-1]:
            action = (cue + answer) % (env.action_space.n - 1)
        observation, reward, done, cut, _ = env.step(action)
        assert not cut
        rewards.append(reward)
    return rewards


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_a_proper_env_and_a_right_answer_is_worth_one(masked):
    env = corral.make_env("toy-recall", masked=masked)
    check_env(corral.make_env("toy-recall"), skip_render_check=True)
    assert play(env, 0) == [0.0] * 21 + [1.0]
    assert sum(play(env, 1)) == 0.0
    assert len({int(env.reset(seed=seed)[0].argmax()) for seed in range(40)}) == 4
    assert hasattr(env, "action_masks") == masked


def test_between_cue_and_question_nothing_is_shown():
    env = corral.make_env("toy-recall", delay=3, render_mode="ansi")
    observation, _ = env.reset(seed=1)
    seen, texts = [observation], [env.render()]
    for _ in range(4):
        seen.append(env.step(4)[0])
        texts.append(env.render())
    assert seen[0].sum() == 1 and not np.any(seen[1:4]) and seen[4].tolist() == [0, 0, 0, 0, 1]
    assert [text[5:] for text in texts] == [str(int(observation.argmax())), ".", ".", ".", "?"]


def test_masks_let_wait_and_then_answer():
    env = corral.make_env("toy-recall", delay=1, masked=True)
    env.reset(seed=0)
    assert env.action_masks().tolist() == [False] * 4 + [True]
    with pytest.raises(ValueError, match="action 0 is masked in step 0"):
        env.step(0)
    env.step(4)
    env.step(4)
    assert env.action_masks().tolist() == [True] * 4 + [False]


def test_it_goes_on_from_a_state():
    env, other = corral.make_env("toy-recall"), corral.make_env("toy-recall")
    env.reset(seed=5)
    for _ in range(7):
        env.step(4)
    other.reset(seed=6)
    other.set_state(env.get_state())
    for _ in range(2):
        for action in [4] * 15 + [0]:
            one, two = env.step(action), other.step(action)
            assert np.array_equal(one[0], two[0]) and one[1:3] == two[1:3]
            if one[2]:
                break
        assert np.array_equal(env.reset()[0], other.reset()[0])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UsageError, match="delay -1, cues 4"):
        corral.make_env("toy-recall", delay=-1)
