import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import corral
from corral.core.errors import UsageError


def play_episode(env, answer, seed=0):
    """Wait, then answer with the cue plus ``answer`` (0 is right); return the rewards of the episode."""
    observation, _ = env.reset(seed=seed)
    cue, rewards, terminated = int(observation.argmax()), [], False
    while not terminated:
        action = env.action_space.n - 1
        if observation[-1]:
            action = (cue + answer) % (env.action_space.n - 1)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert not truncated
        rewards.append(reward)
    return rewards


@pytest.mark.parametrize("masked", [False, True])
def test_it_passes_check_env_and_a_right_answer_is_rewarded_with_one(masked):
    env = corral.make_env("toy-recall", masked=masked)
    check_env(corral.make_env("toy-recall"), skip_render_check=True)
    assert play_episode(env, 0) == [0.0] * 21 + [1.0]
    assert sum(play_episode(env, 1)) == 0.0
    assert len({int(env.reset(seed=seed)[0].argmax()) for seed in range(40)}) == 4
    assert hasattr(env, "action_masks") == masked


def test_observations_between_cue_and_question_are_zero():
    env = corral.make_env("toy-recall", delay=3, render_mode="ansi")
    observation, _ = env.reset(seed=1)
    observations, texts = [observation], [env.render()]
    for _ in range(4):
        observations.append(env.step(4)[0])
        texts.append(env.render())
    assert observations[0].sum() == 1 and not np.any(observations[1:4]) and observations[4].tolist() == [0, 0, 0, 0, 1]
    assert [text[5:] for text in texts] == [str(int(observation.argmax())), ".", ".", ".", "?"]


def test_masks_allow_only_waiting_before_the_question_and_only_answers_then():
    env = corral.make_env("toy-recall", delay=1, masked=True)
    env.reset(seed=0)
    assert env.action_masks().tolist() == [False] * 4 + [True]
    with pytest.raises(ValueError, match="action 0 is masked in step 0"):
        env.step(0)
    env.step(4)
    env.step(4)
    assert env.action_masks().tolist() == [True] * 4 + [False]


def test_an_episode_continues_exactly_from_a_saved_state():
    env, other = corral.make_env("toy-recall"), corral.make_env("toy-recall")
    env.reset(seed=5)
    for _ in range(7):
        env.step(4)
    other.reset(seed=6)
    other.set_state(env.get_state())
    for _ in range(2):
        for action in [4] * 15 + [0]:
            outcome, other_outcome = env.step(action), other.step(action)
            assert np.array_equal(outcome[0], other_outcome[0]) and outcome[1:3] == other_outcome[1:3]
            if outcome[2]:
                break
        assert np.array_equal(env.reset()[0], other.reset()[0])


def test_a_negative_delay_is_refused():
    with pytest.raises(UsageError, match="delay -1, cues 4"):
        corral.make_env("toy-recall", delay=-1)
