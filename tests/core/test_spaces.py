import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from corral.core.actions import ActionCodec
from corral.core.errors import UsageError
from corral.core.spaces import Layout, poisoned, space_from_data, space_to_data

shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
leaves = st.one_of(
    shapes.map(lambda s: spaces.Box(-1, 1, s, np.float32)),
    shapes.map(lambda s: spaces.Box(-np.inf, np.inf, s, np.float64)),
    shapes.map(lambda s: spaces.Box(0, 255, s, np.uint8)),
    st.builds(lambda n, k: spaces.Discrete(n, start=k), st.integers(1, 5), st.integers(-3, 3)),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
)
any_space = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


@given(any_space, st.integers(0, 100))
def test_values_read_back_from_arrays_are_equal_and_batches_match_gymnasium(space, seed):
    layout = Layout(space)
    space.seed(seed)
    values = [space.sample() for _ in range(3)]
    arrays = layout.allocate(3)
    for row, value in enumerate(values):
        layout.write(arrays, row, value)
    batch = layout.batch(arrays)
    expected = concatenate(space, values, create_empty_array(space, 3))
    assert batch_space(space, 3).contains(batch)
    assert _equal(batch, expected)
    for row, value in enumerate(values):
        assert _equal(layout.read(arrays, row), value)
    assert all(np.array_equal(arrays[path], leaf) for path, leaf in layout.unbatch(batch).items())


@pytest.mark.parametrize(
    ("space", "complaint"),
    [
        (spaces.Box(-1, 1, (0,)), "has no numbers in it"),
        (spaces.Box(-1, 1, (3, 0)), "has no numbers in it"),
        (spaces.Dict(), "has no numbers in it"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (0,))), "has no numbers in it at 'b'"),
        (spaces.Tuple([spaces.Box(-1, 1, (0,)), spaces.Dict()]), "has no numbers in it"),
        (spaces.Text(5), "TransformObservation"),
    ],
)
def test_empty_and_text_spaces_are_refused(space, complaint):
    with pytest.raises(UsageError, match=complaint):
        Layout(space)
    with pytest.raises(UsageError, match=complaint.replace("Observation", "Action")):
        ActionCodec(space)


@given(any_space)
def test_spaces_are_equal_after_conversion_to_data_and_back(space):
    assert space_from_data(space_to_data(space)) == space


def test_large_spaces_are_equal_after_conversion_to_data_and_back():
    space = spaces.Dict(a=spaces.Box(-1, 1, (300_000,)), b=spaces.Box(0, 255, (1080, 1920, 3), np.uint8))
    assert space_from_data(space_to_data(space)) == space


BIG = {"type": "Box", "shape": [3000, 3000], "dtype": "<f4", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "data",
    [
        {"type": "Tuple", "spaces": [BIG, BIG]},
        {"type": "Dict", "spaces": [["a", BIG], ["b", {"type": "Tuple", "spaces": [BIG]}]]},
        {"type": "MultiBinary", "n": [5000, 5000]},
        {"type": "Tuple", "spaces": [BIG, {"type": "MultiBinary", "n": 9_000_000}]},
    ],
)
def test_data_of_too_large_spaces_are_refused_before_a_space_is_constructed(monkeypatch, data):
    monkeypatch.setattr(spaces, "Box", lambda *_: pytest.fail("the space was constructed"))
    with pytest.raises(ValueError, match="at most 16,777,216"):
        space_from_data(data)


@pytest.mark.parametrize(
    ("space", "value", "complaint"),
    [
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 1), np.float32), r"shape \(2, 1\), expected \(2,\)"),
        (spaces.Box(-1, 1, (2,)), np.zeros(3, np.float32), r"shape \(3,\)"),
        (spaces.Box(-1, 1, (2,)), "hello", "shape"),
        (spaces.Box(-1, 1, ()), "hello", "expected numbers"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.5, 1.0]), "fractions would be lost"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 256]), "uint8 cannot hold"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([-1, 6]), "uint8 cannot hold"),
        (spaces.Discrete(3), 3, "not in Discrete"),
        (spaces.Discrete(3, start=1), 0, "not in Discrete"),
        (spaces.Discrete(3), 1.0, "fractions"),
        (spaces.MultiDiscrete([2, 2]), np.array([1, 2]), "not in MultiDiscrete"),
        (spaces.MultiBinary(2), np.array([0, 2]), "not in MultiBinary"),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": 1}, "no entry 'a'"),
        (spaces.Tuple([spaces.Discrete(2)]), (), "no entry '0'"),
    ],
)
def test_a_value_outside_the_space_is_refused_with_the_reason(space, value, complaint):
    layout = Layout(space)
    with pytest.raises(ValueError, match=complaint):
        layout.write(layout.allocate(1), 0, value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.zeros(2, np.float64)),
        (spaces.Box(-1, 1, (2,), np.float32), np.zeros(2, np.int64)),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 255], np.int64)),
        (spaces.Discrete(3), 2),
        (spaces.Discrete(3), np.int32(2)),
        (spaces.MultiBinary(2), np.array([True, False])),
    ],
)
def test_values_of_another_dtype_are_accepted_if_none_is_changed(space, value):
    layout = Layout(space)
    arrays = layout.allocate(1)
    layout.write(arrays, 0, value)
    assert np.array_equal(arrays[""][0], value)


def test_a_dict_keeps_its_order_after_conversion_to_data_and_back():
    space = spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(3))])
    assert Layout(space_from_data(space_to_data(space))).paths == Layout(space).paths == ("z", "a")


def test_dict_entries_with_the_same_path_are_refused():
    with pytest.raises(UsageError, match="same path"):
        Layout(spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))}))


def test_the_error_for_an_unsupported_space_names_its_path():
    with pytest.raises(UsageError, match=r"observation space has Text.* at 'a/0'"):
        Layout(spaces.Dict(a=spaces.Tuple([spaces.Text(5)])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int8, np.uint8, np.bool_])
def test_new_arrays_are_filled_with_values_unlikely_in_data(dtype):
    array = poisoned((3,), dtype)
    assert not (array == 0).any()
    if array.dtype.kind == "f":
        assert np.isnan(array).all()


def _equal(first, second):
    """Return whether two values of a nested space are equal."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return np.array_equal(first, second)
