import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from corral.core.actions import ActionCodec

ACTION_SPACES = [
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-1, 1, (2,)),
    spaces.Box(-np.inf, np.inf, (2, 2)),
    spaces.Box(0, 1, (), np.float64),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)])),
]


@given(st.sampled_from(ACTION_SPACES), st.integers(0, 1000))
def test_random_action_rows_decode_to_actions_of_the_space(space, seed):
    codec = ActionCodec(space)
    rows = codec.random(None, 4, np.random.default_rng(seed))
    assert rows.shape == (4, codec.n_actions) and rows.dtype == codec.dtype
    action_arrays = codec.layout.allocate(4)
    codec.decode(rows, action_arrays)
    assert all(space.contains(codec.layout.read(action_arrays, i)) for i in range(4))


def decode(codec, rows):
    """Return action rows as the array of actions of a space with one leaf."""
    action_arrays = codec.layout.allocate(len(rows))
    codec.decode(rows, action_arrays)
    return action_arrays[""]


def test_random_actions_are_legal_under_the_mask():
    codec = ActionCodec(spaces.MultiDiscrete([3, 2]))
    masks = np.array([[0, 1, 0, 1, 0]] * 50, np.bool_)
    assert (codec.random(masks, 50, np.random.default_rng(0)) == (1, 0)).all()


def test_box_actions_are_clipped_for_the_env_but_not_in_the_rollout():
    codec = ActionCodec(spaces.Box(-1, 1, (2,)))
    rows = np.array([[3.0, -0.5]], np.float32)
    assert decode(codec, rows).tolist() == [[1.0, -0.5]]
    assert rows.tolist() == [[3.0, -0.5]]


def test_actions_of_integer_boxes_are_rounded_and_clipped():
    codec = ActionCodec(spaces.Box(0, 3, (2,), np.int64))
    assert decode(codec, np.array([[1.6, 9.0]], np.float32)).tolist() == [[2, 3]]
