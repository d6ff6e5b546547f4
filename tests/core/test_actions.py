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
def test_random_rows_become_actions_of_the_space(space, seed):
    codec = ActionCodec(space)
    rows = codec.random(None, 4, np.random.default_rng(seed))
    assert rows.shape == (4, codec.n_actions) and rows.dtype == codec.dtype
    arrays = codec.layout.allocate(4)
    codec.decode(rows, arrays)
    assert all(space.contains(codec.layout.read(arrays, i)) for i in range(4))


def decoded(codec, rows):
    out = codec.layout.allocate(len(rows))
    codec.decode(rows, out)
    return out[""]


def test_random_rows_obey_masks():
    codec = ActionCodec(spaces.MultiDiscrete([3, 2]))
    masks = np.array([[0, 1, 0, 1, 0]] * 50, np.bool_)
    assert (codec.random(masks, 50, np.random.default_rng(0)) == (1, 0)).all()


def test_box_actions_are_clipped_for_the_env_only():
    codec = ActionCodec(spaces.Box(-1, 1, (2,)))
    rows = np.array([[3.0, -0.5]], np.float32)
    assert decoded(codec, rows).tolist() == [[1.0, -0.5]]
    assert rows.tolist() == [[3.0, -0.5]]


def test_boxes_of_whole_numbers_are_rounded():
    codec = ActionCodec(spaces.Box(0, 3, (2,), np.int64))
    assert decoded(codec, np.array([[1.6, 9.0]], np.float32)).tolist() == [[2, 3]]
