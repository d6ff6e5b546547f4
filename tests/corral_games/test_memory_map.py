"""Memory maps: what they may say, how mistakes are named, and that what is read is what they mean."""

import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.errors import UsageError
from corral_games.game_boy.env import MAP as STRAY_BELL
from corral_games.game_boy.map_file import read_map
from corral_games.game_boy.memory_map import Feature, Press, Term, Value
from corral_games.game_boy.readings import FeatureReader, MemoryLayout, RewardTracker, build_layout
from tests.corral_games.game_boy_roms import MAP

SMALL = "title: T\nfeatures: [{name: x, at: 0xC000}]\n"


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "game.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_map(path)

    return read


# ---- what a file says ------------------------------------------------------------------------------------------


def test_a_whole_map(read):
    found = read(MAP)
    assert (found.title, found.game) == ("TINY", "TINY")
    assert found.start.buttons == (Press(None, 20), Press("a", 4)) and found.start.seed == 0xC016
    assert [feature.width for feature in found.features] == [4, 1, 1, 1, 3]
    assert [(term.name, term.kind, term.weight) for term in found.rewards][:2] == [
        ("new_room", "new", 1.0),
        ("flag", "first", 2.0),
    ]
    assert [value.name for value in found.ends] == ["over"] and found.ends[0].equals == (3, 4)


def test_the_maps_that_come_with_corral():
    for path in STRAY_BELL.parent.glob("*.yaml"):
        found = read_map(path)
        assert found.rewards and found.ends and found.shown and sum(f.width for f in found.features) > 100
    assert {path.stem for path in STRAY_BELL.parent.glob("*.yaml")} == {"stray_bell", "links_awakening"}


def test_a_map_is_the_same_whatever_its_comments(read):
    assert read(MAP).digest == read("# hello\n" + MAP).digest
    assert read(MAP).digest != read(MAP.replace("weight: 0.5", "weight: 0.6")).digest


def test_a_unit_joins_values_that_follow_each_other(read):
    (feature,) = read("title: T\nfeatures: [{name: x, at: 0xC000, one_hot: 3, unit: 16}]").features
    layout = MemoryLayout([0xC000])
    tell = FeatureReader([feature], layout).read
    assert [tell([number]).tolist() for number in (0, 15, 16, 47, 48)] == [
        [1, 0, 0],
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 0],
    ]


def test_the_map_in_the_docs_is_one(read):
    text = (Path(__file__).parents[2] / "docs" / "game-boy.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    found = read(block)
    assert (len(found.rewards), len(found.ends), found.start.seed) == (4, 1, 0xC016)


def test_many_features_are_fine(read):
    lines = "".join(f"  - {{name: f{i}, at: {0xC000 + i}}}\n" for i in range(1000))
    assert len(read(f"title: T\nfeatures:\n{lines}").features) == 1000


WRONG = [
    ("[1, 2]", "should hold `key: value` lines"),
    ("title: [", "at line"),
    ("title: T\ntitle: U\n", "'title' is set twice"),
    ("features: []", "has no 'title'; it is needed"),
    ("title: T", "has no 'features'"),
    (SMALL + "start: []", "start is [], expected `key: value` pairs"),
    (SMALL + f"start: {{idle: 0x{'f' * 5000}}}", "start.idle is a very large number"),
    (SMALL + f"values: {{a: {{at: 1}}}}\nrewards: {{a: {{weight: 0x{'f' * 400}, new: a}}}}", "expected a number"),
    (SMALL + "ends: &a [*a]", "a value contains itself"),
    (SMALL + "rewards: {1: {}}", "rewards should be up to 2,000 names"),
    (SMALL + "values: {b: {at: 1}, a: {join: [b, b, b, b, b, b, b, b, b]}}", "values.a.join joins more than 8 values"),
    ("title: T\nfeatures: [{name: x, at: 1, bits: 500000}]", "bits is 500000"),
    ("title: T\nfeatures: []", "features are 0 numbers together"),
    ("title: 5\nfeatures: []", "title is 5, expected a text"),
    (SMALL + "reward: {}", "unknown key 'reward' (did you mean 'rewards'?)"),
    (SMALL + "values: [1]", "values should be up to 2,000 names"),
    (SMALL + "values: {a: 5}", "values.a is 5, expected `key: value` pairs"),
    (SMALL + "values: {a: {}}", "values.a has no address"),
    (SMALL + "values: {a: {att: 1}}", "values.a has an unknown key 'att' (did you mean 'at'?)"),
    (SMALL + "values: {a: {at: 0x10000}}", "values.a.at is 65536, expected a whole number from 0x0 to 0xFFFF"),
    (SMALL + "values: {a: {at: true}}", "values.a.at is True"),
    (SMALL + "values: {a: {at: C000}}", "values.a.at is 'C000', expected a whole number"),
    (SMALL + "values: {a: {at: -1}}", "values.a.at is -1"),
    (SMALL + "values: {a: {at: 0xFFFF, size: 2}}", "values.a reaches to address 0x10000"),
    (SMALL + "values: {a: {at: 0xFF00, count: 300}}", "values.a reaches to address 0x1002B"),
    (SMALL + "values: {a: {at: 1, size: 5}}", "values.a.size is 5, expected a whole number from 1 to 4"),
    (SMALL + "values: {a: {at: 1, bit: 8}}", "values.a.bit is 8, expected a whole number from 0 to 7"),
    (SMALL + "values: {a: {at: 1, bit: 1, equals: 3}}", "values.a has bit and equals; only one"),
    (SMALL + "values: {a: {at: 1, equals: 256}}", "values.a.equals is 256"),
    (SMALL + "values: {a: {at: 1, equals: []}}", "values.a.equals should be a number"),
    (SMALL + "values: {a: {at: 1, order: middle}}", "values.a.order is 'middle', expected little or big"),
    (SMALL + "values: {a: {at: 1, bcd: 1}}", "values.a.bcd is 1, expected true or false"),
    (SMALL + "values: {a: {at: 1, count: 0}}", "values.a.count is 0"),
    (SMALL + "values: {a: {join: [b]}}", "values.a.join[0] is 'b', expected one of the values above"),
    (SMALL + "values: {room: {at: 1}, a: {join: [rom, room]}}", "join[0] is 'rom' (did you mean 'room'?)"),
    (SMALL + "values: {b: {at: 1}, a: {join: [b]}}", "values.a.join should name two values or more"),
    (SMALL + "values: {b: {at: 1}, a: {join: [b, b], at: 3}}", "values.a has join"),
    ("title: T\nfeatures: [{at: 1}]", "features[0] has no 'name'"),
    ("title: T\nfeatures: [{name: x}]", "features[0] (x) has no address"),
    ("title: T\nfeatures: [{name: x, at: 1, onehot: 3}]", "'onehot' (did you mean 'one_hot'?)"),
    ("title: T\nfeatures: [{name: x, at: 1, max: 0}]", "features[0] (x).max is 0.0, expected more than 0"),
    ("title: T\nfeatures: [{name: x, at: 1, max: .nan}]", "features[0] (x).max is nan, expected a number"),
    ("title: T\nfeatures: [{name: x, at: 1, max: 2, bits: 3}]", "has max and bits; only one"),
    ("title: T\nfeatures: [{name: x, at: 1, one_hot: 1}]", "one_hot is 1, expected a whole number from 2"),
    (SMALL + "values: {a: {at: 1, unit: 0}}", "values.a.unit is 0"),
    (SMALL + "values: {a: {at: 1, unit: 2, bit: 3}}", "values.a has unit and bit; only one"),
    (SMALL + "values: {a: {at: 1, unit: 2, count: 3}}", "values.a has count and unit"),
    ("title: T\nfeatures: [{name: x, at: 1, one_hot_of: []}]", "has 0 classes"),
    ("title: T\nfeatures: [{name: x, at: 1, one_hot_of: [a]}]", "one_hot_of[0] is 'a', expected a whole number"),
    ("title: T\nfeatures: [{name: x, at: 1, bits: 3, size: 2}]", "has bits, so that it cannot have size"),
    ("title: T\nfeatures: [{name: x, at: 0xFFFF, bits: 9}]", "reaches to address 0x10000"),
    ("title: T\nfeatures: [{name: x, at: 0xFFFE, count: 3}]", "reaches to address 0x10000"),
    ("title: T\nfeatures: [{name: x, value: y}]", "value is 'y', expected one of the values above"),
    ("title: T\nfeatures: [{name: x, at: 1}, {name: x, at: 2}]", "features have 'x' twice"),
    ("title: T\nfeatures: [{name: x, at: 1, count: 200000}]", "count is 200000"),
    ("title: T\nfeatures: [{name: x, at: 1, count: 60000, one_hot: 3}]", "180,000 numbers together"),
    (SMALL + "rewards: {a: {new: b}}", "rewards.a has no 'weight'"),
    (SMALL + "rewards: {a: {weight: 1}}", "one of new, first, gain, loss; it has none"),
    (SMALL + "rewards: {a: {weight: 1, new: x, gain: x}}", "it has new and gain"),
    (SMALL + "rewards: {a: {weight: 1, new: rom}}", "rewards.a.new is 'rom'"),
    (SMALL + "values: {v: {at: 1}}\nrewards: {a: {weight: .inf, new: v}}", "rewards.a.weight is inf"),
    (SMALL + "values: {v: {at: 1}}\nrewards: {a: {weight: 1, new: v, when: w}}", "rewards.a.when is 'w'"),
    (SMALL + "ends: [dead]", "ends[0] is 'dead', expected one of the values above"),
    (SMALL + "ends: dead", "ends should be a list"),
    (SMALL + "shown: [[]]", "shown[0] is []"),
    (SMALL + "start: {button: []}", "start has an unknown key 'button' (did you mean 'buttons'?)"),
    (SMALL + "start: {buttons: [strat]}", "start.buttons[0] is 'strat' (did you mean 'start'?)"),
    (SMALL + "start: {buttons: [wait x]}", "start.buttons[0] is 'wait x', expected 1 to 36,000 frames"),
    (SMALL + "start: {buttons: [a 0]}", "expected 1 to 36,000 frames after 'a'"),
    (SMALL + "start: {buttons: [wait 30000, wait 30000]}", "start.buttons take more than 36,000 frames"),
    (SMALL + "start: {state: nowhere.state}", "start.state cannot be read"),
    (SMALL + "start: {seed: 0x100}", "start.seed is 256, expected a whole number from 0x8000"),
    (SMALL + "start: {idle: -1}", "start.idle is -1"),
    (SMALL + "start: 5", "start is 5, expected `key: value` pairs"),
    ("title: !!python/object/apply:os.getcwd []", "cannot read memory map"),
    ("title: " + "[" * 1500, "cannot read memory map"),
    ("title: !!timestamp 2001-99-99", "cannot read memory map"),
    (b"\xff\xfe\x00", "cannot read memory map"),
    ("#" * (1 << 20) + "\n", "it has 1,048,577 bytes, expected 1,048,576 at most"),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_mistakes_are_named(read, text, words):
    with pytest.raises(UsageError) as error:
        read(text)
    assert words in str(error.value) and "game.yaml" in str(error.value)
    assert len(str(error.value)) < 500


def test_a_map_that_is_not_there(tmp_path):
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
def test_whatever_stands_in_a_file_is_a_map_or_a_named_mistake(tmp_path_factory, data, keys):
    import yaml

    path = tmp_path_factory.mktemp("maps") / "game.yaml"
    whole = {"title": "T", "features": [{"name": "x", "at": 1}], "values": {"x": {"at": 1}}}
    path.write_text(yaml.safe_dump(whole | dict.fromkeys(keys, data)))
    try:
        read_map(path)
    except UsageError as error:
        assert "game.yaml" in str(error)


# ---- what is read ----------------------------------------------------------------------------------------------

FIRST = 0xC000
MEMORY = st.lists(st.integers(0, 255), min_size=24, max_size=24)


class Memory:
    """Bytes at some addresses, read as PyBoy's are."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __getitem__(self, where):
        return self.numbers[where.start - FIRST : where.stop - FIRST]


@st.composite
def values(draw):
    size = draw(st.integers(1, 4))
    count = draw(st.integers(0, 4))
    test = draw(st.sampled_from(["", "unit", "bit", "equals", "ones"]))
    return Value(
        "v",
        FIRST + draw(st.integers(0, 24 - size * max(1, count))),
        size,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(1, 300)) if test == "unit" and not count else 1,
        draw(st.integers(0, 8 * size - 1)) if test == "bit" else None,
        tuple(draw(st.lists(st.integers(0, 300), min_size=1, max_size=3))) if test == "equals" else (),
        test == "ones",
        count,
    )


def slow(value, numbers):
    """By the definition, with decimal strings and binary strings."""
    if value.join:
        found = 0
        for part in value.join:
            found = found * (part.limit + 1) + slow(part, numbers)
        return found
    total = 0
    for i in range(max(1, value.count)):
        begin = value.at - FIRST + i * value.size
        part = numbers[begin : begin + value.size]
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
@given(st.lists(values(), min_size=1, max_size=4), MEMORY)
def test_values_are_read_as_they_are_defined(found, numbers):
    joined = Value("all", join=tuple(found))
    layout = MemoryLayout(address for value in found for address in value.addresses)
    seen = layout.read_bytes(Memory(numbers))
    for value in (*found, joined):
        assert layout.reader(value)(seen) == slow(value, numbers) <= value.limit


@st.composite
def features(draw):
    if draw(st.booleans()):
        members = st.lists(st.integers(0, 255), min_size=1, max_size=4).map(tuple)
        return Feature(
            "f", tuple(draw(st.lists(values(), min_size=1, max_size=3))), 0.0, (draw(members), draw(members))
        )
    return Feature("f", tuple(draw(st.lists(values(), min_size=1, max_size=3))), draw(st.floats(0.5, 1000)))


@settings(max_examples=100, deadline=None)
@given(st.lists(features(), min_size=1, max_size=4), MEMORY)
def test_features_are_read_as_they_are_defined(found, numbers):
    expected = []
    for feature in found:
        here = [slow(source, numbers) for source in feature.sources]
        if feature.classes:
            expected += [float(number in members) for members in feature.classes for number in here]
        else:
            expected += [min(1.0, number / feature.scale) for number in here]
    layout = MemoryLayout(a for feature in found for source in feature.sources for a in source.addresses)
    read = FeatureReader(found, layout).read(layout.read_bytes(Memory(numbers)))
    assert read.dtype == np.float32 and read.shape == (len(expected),)
    assert np.array_equal(read, np.array(expected, np.float32))


def test_registers_are_not_read_for_nothing():
    class Recorder:
        def __init__(self):
            self.read = []

        def __getitem__(self, where):
            self.read += range(where.start, where.stop)
            return [0] * (where.stop - where.start)

    memory = Recorder()
    MemoryLayout([0xFEFE, 0xFF01, 0xFF04, 0xFF7E, 0xFF81, 0xC000, 0xC005]).read_bytes(memory)
    asked = {0xFEFE, 0xFF01, 0xFF04, 0xFF7E, 0xFF81}
    assert set(memory.read) - set(range(0xC000, 0xC006)) == asked


def test_each_stretch_of_memory_is_read_once():
    layout = build_layout(read_map(STRAY_BELL), features=True, is_color=False)
    assert len(layout._keys) <= 6


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=30), st.integers(0, 29))
def test_a_meter_pays_by_definition_and_can_be_taken_along(numbers, cut):
    value, when = Value("v", FIRST), Value("w", FIRST + 1)
    kinds = ("new", "first", "gain", "loss")
    terms = [Term(kind, 1.0, kind, value) for kind in kinds] + [Term("late", 1.0, "new", value, (when,))]
    layout = MemoryLayout([FIRST, FIRST + 1])
    meter = RewardTracker(terms, {term.name: 1.0 for term in terms}, layout)
    meter.begin(list(numbers[0]))
    paid = 0.0
    for i, seen in enumerate(numbers[1:]):
        if i == cut:
            saved = meter.save()
            meter = RewardTracker(terms, {term.name: 1.0 for term in terms}, layout)
            meter.load(saved)
        paid += meter.compute_reward(list(seen))
    history = [number for number, _ in numbers]
    met = {number for number, awake in numbers if awake} - ({history[0]} if numbers[0][1] else set())
    expected = [
        len(set(history)) - 1,
        int(history[0] == 0 and max(history) > 0),
        max(history) - history[0],
        sum(max(0, a - b) for a, b in itertools.pairwise(history)),
    ]
    assert meter.earned[:4] == expected and meter.earned[4] == len(met)
    assert paid == sum(meter.earned)
