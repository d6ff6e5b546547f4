"""Memory maps: their format, the errors for invalid ones, and the values, features and rewards that are read by them."""

import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.errors import UsageError
from corral_games.game_boy.env import MAP as STRAY_BELL_MAP
from corral_games.game_boy.features_and_rewards import FeatureReader, MemoryLayout, RewardTracker, build_layout
from corral_games.game_boy.map_file import read_map
from corral_games.game_boy.memory_map import Feature, Press, Term, Value
from tests.corral_games.game_boy_roms import TINY_MAP

MINIMAL_MAP = "title: T\nfeatures: [{name: x, at: 0xC000}]\n"


@pytest.fixture
def read_map_text(tmp_path):
    def read_map_text(text):
        path = tmp_path / "game.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_map(path)

    return read_map_text


# ---- map files -------------------------------------------------------------------------------------------------


def test_every_section_of_a_map_is_read(read_map_text):
    memory_map = read_map_text(TINY_MAP)
    assert (memory_map.title, memory_map.game) == ("TINY", "TINY")
    assert memory_map.start.buttons == (Press(None, 20), Press("a", 4)) and memory_map.start.seed == 0xC016
    assert [feature.width for feature in memory_map.features] == [4, 1, 1, 1, 3]
    assert [(term.name, term.kind, term.weight) for term in memory_map.rewards][:2] == [
        ("new_room", "new", 1.0),
        ("flag", "first", 2.0),
    ]
    assert [value.name for value in memory_map.ends] == ["over"] and memory_map.ends[0].equals == (3, 4)


def test_the_maps_of_the_package_are_valid():
    for path in STRAY_BELL_MAP.parent.glob("*.yaml"):
        memory_map = read_map(path)
        assert (
            memory_map.rewards
            and memory_map.ends
            and memory_map.shown
            and sum(f.width for f in memory_map.features) > 100
        )
    assert {path.stem for path in STRAY_BELL_MAP.parent.glob("*.yaml")} == {"stray_bell", "links_awakening"}


def test_comments_do_not_change_the_digest_of_a_map(read_map_text):
    assert read_map_text(TINY_MAP).digest == read_map_text("# hello\n" + TINY_MAP).digest
    assert read_map_text(TINY_MAP).digest != read_map_text(TINY_MAP.replace("weight: 0.5", "weight: 0.6")).digest


def test_unit_groups_consecutive_values_into_one_class(read_map_text):
    (feature,) = read_map_text("title: T\nfeatures: [{name: x, at: 0xC000, one_hot: 3, unit: 16}]").features
    layout = MemoryLayout([0xC000])
    read_feature = FeatureReader([feature], layout).read
    assert [read_feature([byte]).tolist() for byte in (0, 15, 16, 47, 48)] == [
        [1, 0, 0],
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 0],
    ]


def test_the_example_map_in_the_docs_is_valid(read_map_text):
    text = (Path(__file__).parents[2] / "docs" / "game-boy.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    memory_map = read_map_text(block)
    assert (len(memory_map.rewards), len(memory_map.ends), memory_map.start.seed) == (4, 1, 0xC016)


def test_a_map_can_have_1000_features(read_map_text):
    lines = "".join(f"  - {{name: f{i}, at: {0xC000 + i}}}\n" for i in range(1000))
    assert len(read_map_text(f"title: T\nfeatures:\n{lines}").features) == 1000


INVALID_MAPS = [
    ("[1, 2]", "should hold `key: value` lines"),
    ("title: [", "at line"),
    ("title: T\ntitle: U\n", "'title' is set twice"),
    ("features: []", "has no 'title'; it is needed"),
    ("title: T", "has no 'features'"),
    (MINIMAL_MAP + "start: []", "start is [], expected `key: value` pairs"),
    (MINIMAL_MAP + f"start: {{idle: 0x{'f' * 5000}}}", "start.idle is a very large number"),
    (MINIMAL_MAP + f"values: {{a: {{at: 1}}}}\nrewards: {{a: {{weight: 0x{'f' * 400}, new: a}}}}", "expected a number"),
    (MINIMAL_MAP + "ends: &a [*a]", "a value contains itself"),
    (MINIMAL_MAP + "rewards: {1: {}}", "rewards should be up to 2,000 names"),
    (
        MINIMAL_MAP + "values: {b: {at: 1}, a: {join: [b, b, b, b, b, b, b, b, b]}}",
        "values.a.join joins more than 8 values",
    ),
    ("title: T\nfeatures: [{name: x, at: 1, bits: 500000}]", "bits is 500000"),
    ("title: T\nfeatures: []", "features are 0 numbers together"),
    ("title: 5\nfeatures: []", "title is 5, expected a text"),
    (MINIMAL_MAP + "reward: {}", "unknown key 'reward' (did you mean 'rewards'?)"),
    (MINIMAL_MAP + "values: [1]", "values should be up to 2,000 names"),
    (MINIMAL_MAP + "values: {a: 5}", "values.a is 5, expected `key: value` pairs"),
    (MINIMAL_MAP + "values: {a: {}}", "values.a has no address"),
    (MINIMAL_MAP + "values: {a: {att: 1}}", "values.a has an unknown key 'att' (did you mean 'at'?)"),
    (MINIMAL_MAP + "values: {a: {at: 0x10000}}", "values.a.at is 65536, expected a whole number from 0x0 to 0xFFFF"),
    (MINIMAL_MAP + "values: {a: {at: true}}", "values.a.at is True"),
    (MINIMAL_MAP + "values: {a: {at: C000}}", "values.a.at is 'C000', expected a whole number"),
    (MINIMAL_MAP + "values: {a: {at: -1}}", "values.a.at is -1"),
    (MINIMAL_MAP + "values: {a: {at: 0xFFFF, size: 2}}", "values.a reaches to address 0x10000"),
    (MINIMAL_MAP + "values: {a: {at: 0xFF00, count: 300}}", "values.a reaches to address 0x1002B"),
    (MINIMAL_MAP + "values: {a: {at: 1, size: 5}}", "values.a.size is 5, expected a whole number from 1 to 4"),
    (MINIMAL_MAP + "values: {a: {at: 1, bit: 8}}", "values.a.bit is 8, expected a whole number from 0 to 7"),
    (MINIMAL_MAP + "values: {a: {at: 1, bit: 1, equals: 3}}", "values.a has bit and equals; only one"),
    (MINIMAL_MAP + "values: {a: {at: 1, equals: 256}}", "values.a.equals is 256"),
    (MINIMAL_MAP + "values: {a: {at: 1, equals: []}}", "values.a.equals should be a number"),
    (MINIMAL_MAP + "values: {a: {at: 1, order: middle}}", "values.a.order is 'middle', expected little or big"),
    (MINIMAL_MAP + "values: {a: {at: 1, bcd: 1}}", "values.a.bcd is 1, expected true or false"),
    (MINIMAL_MAP + "values: {a: {at: 1, count: 0}}", "values.a.count is 0"),
    (MINIMAL_MAP + "values: {a: {join: [b]}}", "values.a.join[0] is 'b', expected one of the values above"),
    (MINIMAL_MAP + "values: {room: {at: 1}, a: {join: [rom, room]}}", "join[0] is 'rom' (did you mean 'room'?)"),
    (MINIMAL_MAP + "values: {b: {at: 1}, a: {join: [b]}}", "values.a.join should name two values or more"),
    (MINIMAL_MAP + "values: {b: {at: 1}, a: {join: [b, b], at: 3}}", "values.a has join"),
    ("title: T\nfeatures: [{at: 1}]", "features[0] has no 'name'"),
    ("title: T\nfeatures: [{name: x}]", "features[0] (x) has no address"),
    ("title: T\nfeatures: [{name: x, at: 1, onehot: 3}]", "'onehot' (did you mean 'one_hot'?)"),
    ("title: T\nfeatures: [{name: x, at: 1, max: 0}]", "features[0] (x).max is 0.0, expected more than 0"),
    ("title: T\nfeatures: [{name: x, at: 1, max: .nan}]", "features[0] (x).max is nan, expected a number"),
    ("title: T\nfeatures: [{name: x, at: 1, max: 2, bits: 3}]", "has max and bits; only one"),
    ("title: T\nfeatures: [{name: x, at: 1, one_hot: 1}]", "one_hot is 1, expected a whole number from 2"),
    (MINIMAL_MAP + "values: {a: {at: 1, unit: 0}}", "values.a.unit is 0"),
    (MINIMAL_MAP + "values: {a: {at: 1, unit: 2, bit: 3}}", "values.a has unit and bit; only one"),
    (MINIMAL_MAP + "values: {a: {at: 1, unit: 2, count: 3}}", "values.a has count and unit"),
    ("title: T\nfeatures: [{name: x, at: 1, one_hot_of: []}]", "has 0 classes"),
    ("title: T\nfeatures: [{name: x, at: 1, one_hot_of: [a]}]", "one_hot_of[0] is 'a', expected a whole number"),
    ("title: T\nfeatures: [{name: x, at: 1, bits: 3, size: 2}]", "has bits, so that it cannot have size"),
    ("title: T\nfeatures: [{name: x, at: 0xFFFF, bits: 9}]", "reaches to address 0x10000"),
    ("title: T\nfeatures: [{name: x, at: 0xFFFE, count: 3}]", "reaches to address 0x10000"),
    ("title: T\nfeatures: [{name: x, value: y}]", "value is 'y', expected one of the values above"),
    ("title: T\nfeatures: [{name: x, at: 1}, {name: x, at: 2}]", "features have 'x' twice"),
    ("title: T\nfeatures: [{name: x, at: 1, count: 200000}]", "count is 200000"),
    ("title: T\nfeatures: [{name: x, at: 1, count: 60000, one_hot: 3}]", "180,000 numbers together"),
    (MINIMAL_MAP + "rewards: {a: {new: b}}", "rewards.a has no 'weight'"),
    (MINIMAL_MAP + "rewards: {a: {weight: 1}}", "one of new, first, gain, loss; it has none"),
    (MINIMAL_MAP + "rewards: {a: {weight: 1, new: x, gain: x}}", "it has new and gain"),
    (MINIMAL_MAP + "rewards: {a: {weight: 1, new: rom}}", "rewards.a.new is 'rom'"),
    (MINIMAL_MAP + "values: {v: {at: 1}}\nrewards: {a: {weight: .inf, new: v}}", "rewards.a.weight is inf"),
    (MINIMAL_MAP + "values: {v: {at: 1}}\nrewards: {a: {weight: 1, new: v, when: w}}", "rewards.a.when is 'w'"),
    (MINIMAL_MAP + "ends: [dead]", "ends[0] is 'dead', expected one of the values above"),
    (MINIMAL_MAP + "ends: dead", "ends should be a list"),
    (MINIMAL_MAP + "shown: [[]]", "shown[0] is []"),
    (MINIMAL_MAP + "start: {button: []}", "start has an unknown key 'button' (did you mean 'buttons'?)"),
    (MINIMAL_MAP + "start: {buttons: [strat]}", "start.buttons[0] is 'strat' (did you mean 'start'?)"),
    (MINIMAL_MAP + "start: {buttons: [wait x]}", "start.buttons[0] is 'wait x', expected 1 to 36,000 frames"),
    (MINIMAL_MAP + "start: {buttons: [a 0]}", "expected 1 to 36,000 frames after 'a'"),
    (MINIMAL_MAP + "start: {buttons: [wait 30000, wait 30000]}", "start.buttons take more than 36,000 frames"),
    (MINIMAL_MAP + "start: {state: nowhere.state}", "start.state cannot be read"),
    (MINIMAL_MAP + "start: {seed: 0x100}", "start.seed is 256, expected a whole number from 0x8000"),
    (MINIMAL_MAP + "start: {idle: -1}", "start.idle is -1"),
    (MINIMAL_MAP + "start: 5", "start is 5, expected `key: value` pairs"),
    ("title: !!python/object/apply:os.getcwd []", "cannot read memory map"),
    ("title: " + "[" * 1500, "cannot read memory map"),
    ("title: !!timestamp 2001-99-99", "cannot read memory map"),
    (b"\xff\xfe\x00", "cannot read memory map"),
    ("#" * (1 << 20) + "\n", "it has 1,048,577 bytes, expected 1,048,576 at most"),
]


@pytest.mark.parametrize(("text", "message"), INVALID_MAPS, ids=[str(i) for i in range(len(INVALID_MAPS))])
def test_an_invalid_map_raises_an_error_that_names_file_and_key(read_map_text, text, message):
    with pytest.raises(UsageError) as error:
        read_map_text(text)
    assert message in str(error.value) and "game.yaml" in str(error.value)
    assert len(str(error.value)) < 500


def test_a_map_that_cannot_be_opened_raises_a_usage_error(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path, os.devnull):
        with pytest.raises(UsageError, match="cannot read memory map"):
            read_map(path)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-1, 70000)
        | st.just(16**400)
        | st.floats()
        | st.sampled_from(["at", "x", "a 3", "wait"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["title", "values", "at", "name", "join", "when", "new", "bits", "weight", "x", 1, None]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.sets(st.sampled_from(["title", "start", "values", "features", "rewards", "ends", "shown"]), min_size=1),
)
def test_any_yaml_content_is_a_map_or_a_usage_error(tmp_path_factory, content, keys):
    import yaml

    path = tmp_path_factory.mktemp("maps") / "game.yaml"
    valid_map = {"title": "T", "features": [{"name": "x", "at": 1}], "values": {"x": {"at": 1}}}
    path.write_text(yaml.safe_dump(valid_map | dict.fromkeys(keys, content)))
    try:
        read_map(path)
    except UsageError as error:
        assert "game.yaml" in str(error)


# ---- values, features and rewards ------------------------------------------------------------------------------

FIRST_ADDRESS = 0xC000
MEMORY_BYTES = st.lists(st.integers(0, 255), min_size=24, max_size=24)


class FakeMemory:
    """Bytes from ``FIRST_ADDRESS`` on, read by slices of addresses like the memory of PyBoy."""

    def __init__(self, data):
        self.data = data

    def __getitem__(self, addresses):
        return self.data[addresses.start - FIRST_ADDRESS : addresses.stop - FIRST_ADDRESS]


@st.composite
def any_value(draw):
    size = draw(st.integers(1, 4))
    count = draw(st.integers(0, 4))
    transform = draw(st.sampled_from(["", "unit", "bit", "equals", "ones"]))
    return Value(
        "v",
        FIRST_ADDRESS + draw(st.integers(0, 24 - size * max(1, count))),
        size,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(1, 300)) if transform == "unit" and not count else 1,
        draw(st.integers(0, 8 * size - 1)) if transform == "bit" else None,
        tuple(draw(st.lists(st.integers(0, 300), min_size=1, max_size=3))) if transform == "equals" else (),
        transform == "ones",
        count,
    )


def reference_value(value, data):
    """Compute a value by its definition, by means of decimal, hexadecimal and binary strings."""
    if value.join:
        joined = 0
        for part in value.join:
            joined = joined * (part.limit + 1) + reference_value(part, data)
        return joined
    total = 0
    for i in range(max(1, value.count)):
        begin = value.at - FIRST_ADDRESS + i * value.size
        part = data[begin : begin + value.size]
        part = part if value.big else part[::-1]
        if value.bcd:
            number = int("".join(str(min(9, int(digit, 16))) for byte in part for digit in f"{byte:02x}"))
        else:
            number = int("".join(f"{byte:02x}" for byte in part), 16)
        if value.bit is not None:
            number = int(f"{number:040b}"[::-1][value.bit])
        elif value.equals:
            number = 1 if number in value.equals else 0
        elif value.ones:
            number = f"{number:b}".count("1")
        elif value.count:
            number = 1 if number else 0
        else:
            number //= value.unit
        total += number
    return total


@settings(max_examples=150, deadline=None)
@given(st.lists(any_value(), min_size=1, max_size=4), MEMORY_BYTES)
def test_values_equal_a_reference_implementation(values, data):
    joined = Value("all", join=tuple(values))
    layout = MemoryLayout(address for value in values for address in value.addresses)
    read_data = layout.read_bytes(FakeMemory(data))
    for value in (*values, joined):
        assert layout.reader(value)(read_data) == reference_value(value, data) <= value.limit


@st.composite
def any_feature(draw):
    if draw(st.booleans()):
        members = st.lists(st.integers(0, 255), min_size=1, max_size=4).map(tuple)
        return Feature(
            "f", tuple(draw(st.lists(any_value(), min_size=1, max_size=3))), 0.0, (draw(members), draw(members))
        )
    return Feature("f", tuple(draw(st.lists(any_value(), min_size=1, max_size=3))), draw(st.floats(0.5, 1000)))


@settings(max_examples=100, deadline=None)
@given(st.lists(any_feature(), min_size=1, max_size=4), MEMORY_BYTES)
def test_features_equal_a_reference_implementation(features, data):
    expected = []
    for feature in features:
        source_values = [reference_value(source, data) for source in feature.sources]
        if feature.classes:
            expected += [float(number in members) for members in feature.classes for number in source_values]
        else:
            expected += [min(1.0, number / feature.scale) for number in source_values]
    layout = MemoryLayout(a for feature in features for source in feature.sources for a in source.addresses)
    actual = FeatureReader(features, layout).read(layout.read_bytes(FakeMemory(data)))
    assert actual.dtype == np.float32 and actual.shape == (len(expected),)
    assert np.array_equal(actual, np.array(expected, np.float32))


def test_only_the_hardware_registers_that_are_asked_for_are_read():
    class Recorder:
        def __init__(self):
            self.addresses_read = []

        def __getitem__(self, addresses):
            self.addresses_read += range(addresses.start, addresses.stop)
            return [0] * (addresses.stop - addresses.start)

    memory = Recorder()
    MemoryLayout([0xFEFE, 0xFF01, 0xFF04, 0xFF7E, 0xFF81, 0xC000, 0xC005]).read_bytes(memory)
    asked_addresses = {0xFEFE, 0xFF01, 0xFF04, 0xFF7E, 0xFF81}
    assert set(memory.addresses_read) - set(range(0xC000, 0xC006)) == asked_addresses


def test_nearby_addresses_are_read_as_one_range():
    layout = build_layout(read_map(STRAY_BELL_MAP), features=True, is_color=False)
    assert len(layout._keys) <= 6


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=30), st.integers(0, 29))
def test_rewards_equal_a_reference_implementation_across_save_and_load(data_by_step, save_step):
    value, condition = Value("v", FIRST_ADDRESS), Value("w", FIRST_ADDRESS + 1)
    kinds = ("new", "first", "gain", "loss")
    terms = [Term(kind, 1.0, kind, value) for kind in kinds] + [Term("late", 1.0, "new", value, (condition,))]
    layout = MemoryLayout([FIRST_ADDRESS, FIRST_ADDRESS + 1])
    tracker = RewardTracker(terms, {term.name: 1.0 for term in terms}, layout)
    tracker.begin(list(data_by_step[0]))
    total_reward = 0.0
    for i, data in enumerate(data_by_step[1:]):
        if i == save_step:
            saved = tracker.save()
            tracker = RewardTracker(terms, {term.name: 1.0 for term in terms}, layout)
            tracker.load(saved)
        total_reward += tracker.compute_reward(list(data))
    values = [v for v, _ in data_by_step]
    values_under_condition = {v for v, holds in data_by_step if holds} - ({values[0]} if data_by_step[0][1] else set())
    expected = [
        len(set(values)) - 1,
        int(values[0] == 0 and max(values) > 0),
        max(values) - values[0],
        sum(max(0, a - b) for a, b in itertools.pairwise(values)),
    ]
    assert tracker.earned[:4] == expected and tracker.earned[4] == len(values_under_condition)
    assert total_reward == sum(tracker.earned)
