import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.config.schema import TrainConfig, parse_config
from corral.config.yaml_file import dump_yaml, load_yaml
from corral.core.errors import UsageError


def parse(**values):
    return parse_config({"env": "CartPole-v1", **values})


def test_defaults_are_those_of_stable_baselines3():
    config = parse()
    assert (config.n_steps, config.batch_size, config.n_epochs, config.learning_rate) == (2048, 64, 10, 3e-4)
    assert (
        config.gamma,
        config.gae_lambda,
        config.clip_range,
        config.ent_coef,
        config.vf_coef,
        config.max_grad_norm,
    ) == (
        0.99,
        0.95,
        0.2,
        0,
        0.5,
        0.5,
    )
    assert config.n_envs == 8 and config.timesteps == 100_000


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"n_envs": 0}, "n_envs 0: should be greater than or equal to 1"),
        ({"n_envs": -1}, "n_envs -1"),
        ({"n_envs": 2.5}, "n_envs 2.5"),
        ({"n_envs": 10**6}, "less than or equal to 65536"),
        ({"n_envs": "many"}, "n_envs 'many'"),
        ({"gamma": float("nan")}, "gamma nan"),
        ({"learning_rat": 1}, "unknown setting 'learning_rat' .did you mean 'learning_rate'"),
        ({"batch_size": 100, "n_steps": 128}, "= 1024; the nearest that do: 64 and 128"),
        ({"n_envs": 8, "num_workers": 2, "num_envs_per_worker": 3}, "disagrees with num_workers 2 x .* 3 = 6"),
        ({"num_workers": 9}, "more than n_envs 8"),
        ({"num_workers": 2, "backend": "serial"}, "needs backend worker"),
        ({"backend": "thread"}, "backend 'thread'"),
        ({"device": "tpu"}, "device 'tpu': should be cpu"),
        ({"learning_rate_end": 0, "num_episodes": 5}, "needs timesteps"),
        ({"net_arch": ["64", "wide"]}, "net_arch"),
        ({"net_arch": {"pi": [64], "q": [1]}}, "net_arch"),
        ({"env_kwargs": ["level"]}, "not of the form key=value"),
        ({"seed": -1}, "seed -1"),
        ({"n_envs": True}, "n_envs True: should be a number"),
        ({"timesteps": "1.5e0"}, "timesteps '1.5e0'"),
        ({"num_envs_per_worker": 16}, "more than n_envs 8"),
        ({"num_workers": 4096, "num_envs_per_worker": 65536}, "at most 65536"),
        ({"policy": "m:f", "net_arch": [32]}, "net_arch shapes the built-in network"),
        ({"policy": "m:f", "score_actions": True}, "score_actions shapes the built-in network"),
        ({"backend": "serial", "parallel_start_method": "spawn"}, "is for workers"),
        ({"net_arch": [10**12, 64]}, r"net_arch \[1000000000000, 64\]: should be less than or equal to 65536$"),
        ({"net_arch": [65_536] * 3}, "at most 64 layers and 268,435,456 weights"),
        ({"net_arch": 10**5000}, "net_arch .a very long int"),
        ({"recurrent": "gru", "recurrent_size": 10**9}, "less than or equal to 16384"),
        ({"cnn_features": 10**9}, "less than or equal to 65536"),
        ({"n_steps": 10**20}, r"less than 2\*\*63"),
        ({"n_steps": 10**10}, "less than or equal to 1000000000"),
        ({"n_steps": 10**9 - 63, "batch_size": 64}, "does not divide the rollout"),
        ({"seed": 10**5000}, "seed .a very long int"),
        ({"gamma": 10**400}, "gamma"),
        ({"duration": "1:30"}, "duration '1:30': should be a number of hours, as in 1.5"),
        ({"output_dir": "a\0b"}, "no null character"),
        ({"output_dir": "caf\udce9"}, "text that UTF-8 can hold"),
        ({"env_kwargs": {"a": ["\ud800"]}}, "text that UTF-8 can hold"),
        ({"env_kwargs": ["a\nb"]}, "not of the form key=value"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(values, complaint):
    with pytest.raises(UsageError, match=complaint) as error:
        parse(**values)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300 and error.value.exit_code == 2


UNUSUAL_YAML = [
    "2024-02-30",
    "0x_",
    "-0b_",
    "!!int x",
    "!!float x",
    "!!bool x",
    "!!timestamp x",
    "!!timestamp 2024-02-30",
    "2001-12-14t21:59:43.10+99:99",
    "9" * 5000,
    "0x" + "f" * 5000,
    "1:30",
    "[" * 1500 + "]" * 1500,
    "{a: " * 500 + "1" + "}" * 500,
    "&a [*a]",
    "&a {x: *a}",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!binary '///'",
    "!!python/object:os.system x",
    '"a\\0b"',
    '"\\ud800"',
    "x" * 100_000,
    "[" + "64, " * 3_000 + "64]",
    ".nan",
    "1e400",
    "<<: 5",
    "? [1]\n: 2",
    "null",
    "~\n~: 3",
    "!!int ''",
    "!!float ''",
    "!!map x",
    "!!map [a]",
    "!!set [a]",
    "!!omap [a]",
    "!!pairs x",
    '"\\UFFFFFFFF"',
    '"\\U00110000"',
    "{? 0x" + "f" * 10_000 + " : 1}",
    "1\n? 0x" + "f" * 10_000 + "\n: 1",
    "1\ntraining: {? 0x" + "f" * 10_000 + " : 1}",
]


def read_config(file, text):
    """Return the config of a YAML file with this text, or the one-line error if it is refused."""
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return parse_config({"env": "CartPole-v1", **load_yaml(file)})
    except UsageError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000, str(error)
        return str(error)


@pytest.mark.parametrize("text", UNUSUAL_YAML, ids=lambda text: text[:20])
@pytest.mark.parametrize("key", ["seed", "env", "env_kwargs", "net_arch", "duration", "overlap", "stages"])
def test_unusual_yaml_values_are_accepted_or_refused_in_one_line(tmp_path, key, text):
    read_config(tmp_path / "config.yaml", f"{key}: {text}\n")


YAML_VALUES = st.sampled_from(UNUSUAL_YAML) | st.text() | st.integers().map(str) | st.floats().map(str)
YAML_LINES = st.tuples(st.sampled_from([*TrainConfig.model_fields, "parallel", "training"]) | st.text(), YAML_VALUES)


@given(st.text() | st.lists(YAML_LINES.map(": ".join), max_size=4).map("\n".join))
def test_any_text_in_a_config_file_is_accepted_or_refused_in_one_line(tmp_path_factory, text):
    read_config(tmp_path_factory.getbasetemp() / "any.yaml", text)


def test_times_and_dates_are_read_as_text(tmp_path):
    file = tmp_path / "config.yaml"
    assert read_config(file, "env_kwargs: {at: 1:30, date: 2024-02-30}\n").env_kwargs == {
        "at": "1:30",
        "date": "2024-02-30",
    }
    assert parse(env_kwargs=["at=1:30", "date=2024-02-30", "n=0x_", "m=0x10"]).env_kwargs == {
        "at": "1:30",
        "date": "2024-02-30",
        "n": "0x_",
        "m": 16,
    }
    assert "number of hours" in read_config(file, "duration: 1:30\n")
    assert read_config(file, "duration: 1.5\n").duration == 1.5


def test_timesteps_has_no_default_if_another_budget_is_given():
    assert parse(num_episodes=10).timesteps is None
    assert parse(duration=0.5).timesteps is None


def test_numbers_of_workers_and_envs_are_derived_from_each_other():
    assert (
        parse(num_workers=4, num_envs_per_worker=8).n_envs,
        parse(n_envs=12, num_envs_per_worker=4).num_workers,
    ) == (32, 3)
    uneven = parse(n_envs=10, num_envs_per_worker=4)
    assert (uneven.n_envs, uneven.num_workers) == (10, 3)


def test_a_batch_size_larger_than_the_rollout_means_one_minibatch():
    assert parse(batch_size=5000, n_steps=64).minibatch_size == 512


@pytest.mark.parametrize(
    ("net_arch", "expected"),
    [
        ([64, 64], {"pi": (64, 64), "vf": (64, 64)}),
        (["32"], {"pi": (32,), "vf": (32,)}),
        ("128,64", {"pi": (128, 64), "vf": (128, 64)}),
        ("128 64", {"pi": (128, 64), "vf": (128, 64)}),
        (["pi=64,64", "vf=32"], {"pi": (64, 64), "vf": (32,)}),
        ({"pi": [8], "vf": [9, 9]}, {"pi": (8,), "vf": (9, 9)}),
        ([], {"pi": (), "vf": ()}),
    ],
)
def test_net_arch_is_accepted_in_several_forms(net_arch, expected):
    assert parse(net_arch=net_arch).net_arch == expected


@pytest.mark.parametrize("text", UNUSUAL_YAML, ids=lambda text: text[:20])
def test_env_kwargs_with_unusual_yaml_are_accepted_or_refused_with_a_usage_error(text):
    with contextlib.suppress(UsageError):
        parse(env_kwargs=[f"a={text}"])


def test_env_kwargs_are_parsed_as_yaml_values():
    env_kwargs = ["a=1", "b=1e-4", "c=true", "d=text", "e=[1, 2]", "f=x=y"]
    assert parse(env_kwargs=env_kwargs).env_kwargs == {
        "a": 1,
        "b": 1e-4,
        "c": True,
        "d": "text",
        "e": [1, 2],
        "f": "x=y",
    }


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "n_envs": st.integers(1, 64),
            "learning_rate": st.floats(1e-8, 1),
            "target_kl": st.none() | st.floats(1e-4, 1),
            "net_arch": st.lists(st.integers(1, 512), max_size=3),
            "normalize_obs": st.booleans(),
            "activation_fn": st.sampled_from(["tanh", "relu"]),
            "env_kwargs": st.dictionaries(st.text("ab_", min_size=1), st.integers() | st.booleans() | st.text()),
            "output_dir": st.none() | st.text("a/é :#", min_size=1),
            "seed": st.none() | st.integers(0, 2**63 - 1),
        },
    )
)
def test_a_config_is_equal_after_writing_and_reading_its_file(tmp_path_factory, values):
    config = parse(**values)
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_text(dump_yaml(config, {"backend": "auto: because"}), encoding="utf-8")
    assert parse_config(load_yaml(file)) == config


def test_sections_of_a_config_file_are_flattened_and_floats_may_be_written_with_an_exponent(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("parallel:\n  num_workers: 2\n  num_envs_per_worker: 4\ntraining:\n  learning_rate: 1e-4\n")
    config = parse(**load_yaml(file))
    assert (config.n_envs, config.num_workers, config.learning_rate) == (8, 2, 1e-4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("n_env: 3", "unknown key 'n_env' .*did you mean 'n_envs'"),
        ("training:\n  lr: 3", "unknown key 'lr'"),
        ("a: [1", "line 1|line 2"),
        ("- 1", "key: value. lines, not a list"),
        ("!!python/object/apply:os.system ['touch owned']", "could not determine a constructor"),
        ("n_steps: 1\nn_steps: 2", "'n_steps' is set twice"),
        ("0: 1\n0: 2", "0 is set twice"),
        ("n_steps: 1\ntraining:\n  n_steps: 2", "sets 'n_steps' twice"),
    ],
)
def test_invalid_config_files_are_refused_and_execute_no_code(tmp_path, text, complaint):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        load_yaml(file)
    assert not (tmp_path / "owned").exists()


def test_every_setting_has_a_description():
    assert all(field.description for field in TrainConfig.model_fields.values())


def test_integers_in_exponent_form_and_empty_sections_are_accepted_and_other_encodings_refused(tmp_path):
    assert parse(timesteps="1e6").timesteps == 1_000_000
    (tmp_path / "c.yaml").write_text("training:\n")
    assert load_yaml(tmp_path / "c.yaml") == {}
    (tmp_path / "c.yaml").write_bytes(b"n_envs: 3 # \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_yaml(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"expert_steps": 5}, "expert_steps 5 has no effect without expert"),
        ({"expert_steps": 20_000, "expert_values": True}, "expert_values True has no effect without expert"),
        ({"pool_size": 3}, "pool_size 3 has no effect without an opponent that is checkpoint or current"),
        ({"snapshot_freq": 3, "opponent": "greedy"}, "snapshot_freq 3 has no effect"),
        ({"expert": "greedy", "normalize_obs": True}, "expert and normalize_obs"),
        ({"critic_warmup": 9, "normalize_obs": True}, "critic_warmup and normalize_obs"),
        ({"expert": "a", "expert_values": True, "normalize_reward": True}, "expert_values and normalize_reward"),
        ({"critic_warmup": 900, "timesteps": 900}, "critic_warmup 900 leaves nothing of timesteps 900"),
    ],
)
def test_settings_without_effect_or_in_conflict_are_refused(settings, complaint):
    with pytest.raises(UsageError, match=complaint):
        parse_config({"env": "x", **settings})
    parse_config({"env": "x", "pool_size": 3, "opponent": "mixed:checkpoint=1,greedy=1"})


NINEFOLD_ALIASES = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\n  ".join(["a0: &a0 [1]", *NINEFOLD_ALIASES]), "stand for more than 100,000 values"),
        ("a: &a [*a]", "contains itself"),
        ("a: [" + "1," * 400_000 + "1]", ": there are more than 100,000 values"),
        (
            "m0: &m0 {k: 1}\n  "
            + "\n  ".join(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 9)),
            "aliases",
        ),
    ],
    ids=["nested aliases", "alias of itself", "long list without aliases", "merge keys"],
)
def test_yaml_that_expands_to_too_many_values_is_refused(tmp_path, text, complaint):
    (tmp_path / "c.yaml").write_text(f"env_kwargs:\n  {text}\n")
    with pytest.raises(UsageError, match=complaint):
        load_yaml(tmp_path / "c.yaml")


def test_yaml_aliases_are_expanded(tmp_path):
    (tmp_path / "c.yaml").write_text("net_arch: {pi: &sizes [64, 64], vf: *sizes}\nenv_kwargs: &none {}\n")
    assert load_yaml(tmp_path / "c.yaml") == {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "env_kwargs": {}}


def test_a_config_is_read_from_a_pipe_up_to_a_size_limit(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"seed: 3\n")
    os.close(writer)
    assert load_yaml(f"/dev/fd/{reader}") == {"seed": 3}
    os.close(reader)
    with pytest.raises(UsageError, match="more than 1,048,576 bytes"):
        load_yaml("/dev/zero")


@pytest.mark.parametrize("name", ["\u3000games/my game.py:make", "é\u00a0.py:make", "👨\u200d👩.py:make"])
def test_env_names_in_any_script_are_accepted(name):
    assert parse_config({"env": name}).env == name


@pytest.mark.parametrize("name", [*"\x1b\n\u2028\u202e\u2066\u200b\u00ad\ufeff\U000e0041", "b" * 5000])
def test_env_names_with_invisible_or_control_characters_or_too_long_are_refused(name):
    with pytest.raises(UsageError, match=r"env .* should have (no control characters in it|at most 4096 characters)"):
        parse_config({"env": f"a{name}:b"})
