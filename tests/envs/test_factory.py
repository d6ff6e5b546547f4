import contextlib
import pickle
import sys

import gymnasium as gym
import pytest

import corral
from corral.cli.main import main
from corral.core.errors import UsageError
from corral.envs import registry
from corral.envs.factory import resolve_env
from corral.envs.registry import is_code
from corral.vec import make_vector_env
from tests.toy_envs import Counter


@pytest.mark.parametrize("name", ["CartPole-v1", "gymnasium.envs.classic_control:CartPole-v1", "toy-maze"])
def test_env_ids_and_built_in_names_make_envs(name):
    env = corral.make_env(name)
    env.reset(seed=0)
    env.close()


def test_callables_in_modules_and_files_make_envs(tmp_path, monkeypatch):
    (tmp_path / "neighbour.py").write_text("LENGTH = 3\n")
    (tmp_path / "game.py").write_text(
        "from neighbour import LENGTH\nfrom tests.toy_envs import Counter\ndef make(extra=0):\n    return Counter(LENGTH + extra)\n"
    )
    assert corral.make_env("tests.toy_envs:Counter", length=4).length == 4
    assert corral.make_env("game.py:make", extra=2).length == 5
    assert resolve_env("game.py:make")().length == 3


def test_modules_in_the_current_directory_are_imported_only_if_the_user_names_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in ("pyboy", "envpool", "ale_py", "named_here"):
        (tmp_path / f"{name}.py").write_text(
            "from tests.toy_envs import Counter as make\nopen(__name__, 'w').close()\n"
        )
    (tmp_path / "gymnasium").mkdir()  # an empty directory with the name of a package
    for name in ("toy-maze", "tests.toy_envs:Counter", "gymnasium.envs.classic_control:CartPole-v1"):
        corral.make_env(name).close()
    with pytest.raises(UsageError):
        corral.make_env("nothing-like-it")  # searches all packages for similar names
    assert str(tmp_path) not in sys.path and not [
        path for path in tmp_path.iterdir() if not path.suffix and path.is_file()
    ]
    assert isinstance(corral.make_env("named_here:make"), Counter)
    assert sys.path[0] == str(tmp_path) and (tmp_path / "named_here").exists()


def test_render_mode_reaches_the_env():
    assert corral.make_env("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"
    assert corral.make_env("toy-maze", render_mode="ansi").render_mode == "ansi"
    assert isinstance(corral.make_env(Counter, render_mode="ansi"), Counter)  # its constructor takes no render_mode


def test_a_factory_of_a_locally_registered_id_works_in_other_processes():
    gym.register("Local-v0", entry_point=lambda: Counter(2))
    try:
        factory = pickle.loads(pickle.dumps(resolve_env("Local-v0")))
    finally:
        gym.registry.pop("Local-v0")
    assert factory().unwrapped.length == 2


def test_a_callable_is_not_copied_within_its_process():
    calls = []
    factory = resolve_env(lambda: (calls.append(1), Counter(len(calls)))[1])
    assert [factory().length, factory().length] == [1, 2]


def test_a_file_that_cannot_be_imported_is_a_usage_error_with_its_traceback(tmp_path):
    (tmp_path / "broken.py").write_text("import nonsense_module\n")
    with pytest.raises(UsageError, match=r"importing broken.py failed: ModuleNotFoundError[\s\S]*line 1"):
        resolve_env("broken.py:make")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("CartPol-v1", "unknown env 'CartPol-v1' .did you mean 'CartPole-v1'"),
        ("CartPole-v9", "did you mean"),
        ("Pong-v5", "did you mean 'ALE/Pong-v5'"),
        ("CoinrunEasy-v0", "did you mean 'envpool:CoinrunEasy-v0'"),
        ("toy-mase", "did you mean 'toy-maze'"),
        ("nonsense", "corral list"),
        ("no.such.module:make", "no module named 'no.such.module'"),
        ("no_such_module:Thing-v0", "no_such_module"),
        ("tests.toy_envs:Countr", "did you mean 'Counter'"),
        ("tests.toy_envs:spaces", "expected something callable"),
        ("missing.py:make", "no file 'missing.py'"),
    ],
)
def test_unknown_env_names_are_refused_with_a_suggestion(name, complaint):
    with pytest.raises(UsageError, match=complaint):
        resolve_env(name)


class ParallelEnv:
    """Has the module name of an env of PettingZoo."""

    __module__ = "pettingzoo.utils.env"


class OldEnv:
    """Has the module name of an env of gym, the predecessor of Gymnasium."""

    __module__ = "gym.core"


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (3, r"returned builtins\.int, expected a gymnasium\.Env$"),
        (None, "returned None, expected a gymnasium.Env; did you forget `return`"),
        (ParallelEnv(), "PettingZoo env of several agents.* one agent"),
        (type("Mine", (ParallelEnv,), {"__module__": "mine"})(), "PettingZoo env of several agents.* one agent"),
        (OldEnv(), "shimmy.GymV26CompatibilityV0"),
    ],
)
def test_a_factory_that_does_not_return_a_gymnasium_env_is_refused(returned, complaint):
    with pytest.raises(UsageError, match=complaint):
        resolve_env(lambda: returned)()


def test_a_name_after_a_module_is_a_registered_id_or_else_a_callable(tmp_path, monkeypatch):
    source = "import gymnasium as gym\nfrom tests.toy_envs import Counter\nclass Plain(Counter): pass\n"
    source += "gym.register('Unversioned', entry_point=lambda: Counter(7))\n"
    source += "gym.register('own/Name', entry_point=lambda: Counter(8))\n"
    source += "gym.register('Only-v0', entry_point=lambda: Counter(4))\n"
    source += "gym.register('Newest-v2', entry_point=lambda: Counter(2))\n"
    source += "gym.register('Newest-v3', entry_point=lambda: Counter(3))\n"
    (tmp_path / "unversioned_games.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    lengths = {"Unversioned": 7, "own/Name": 8, "Plain": 5}  # two registered ids and a class
    try:
        for name, length in lengths.items():
            factory = pickle.loads(pickle.dumps(resolve_env(f"unversioned_games:{name}")))
            assert factory().unwrapped.length == length and factory.name == f"unversioned_games:{name}"
        with pytest.raises(UsageError, match="no 'Nothing' in unversioned_games"):
            resolve_env("unversioned_games:Nothing")
        for name, length in {"Newest": 3, "Only": 4}.items():  # the newest version, as in gym.make
            assert resolve_env(f"unversioned_games:{name}")().unwrapped.length == length
    finally:
        for name in ("Unversioned", "own/Name", "Only-v0", "Newest-v2", "Newest-v3"):
            gym.registry.pop(name, None)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_factory_finds_its_file_after_an_env_changed_the_working_directory(tmp_path, backend):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wandering.py").write_text(
        "import os\nfrom tests.toy_envs import Counter\n"
        "def make():\n    if os.path.isdir('elsewhere'):\n        os.chdir('elsewhere')\n    return Counter(3)\n"
    )
    factory = resolve_env("wandering.py:make")
    assert factory.name == "wandering.py:make"
    env = make_vector_env(factory, 3, backend=backend, **({} if backend == "serial" else {"num_workers": 1}))
    assert pickle.loads(pickle.dumps(factory))().length == 3
    env.close()


def test_commands_find_their_files_after_an_env_changed_the_working_directory(tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wandering.py").write_text(
        "import os\nfrom tests.toy_envs import Counter\n"
        f"def make():\n    os.chdir({str(tmp_path / 'elsewhere')!r})\n    return Counter(3)\n"
    )
    settings = ["--n-envs", "1", "--n-steps", "32", "--batch-size", "32", "--backend", "serial", "--no-tensorboard"]
    for arguments in (
        ["train", "wandering.py:make", "--timesteps", "64", "--output-dir", "run", *settings],
        ["resume", "run", "--env", "wandering.py:make", "--timesteps", "96"],
        ["eval", "run", "--env", "wandering.py:make", "--episodes", "2"],
    ):
        with contextlib.chdir(tmp_path):
            assert main(arguments) == 0, capsys.readouterr().err
    assert "run (best, " in capsys.readouterr().out


def test_an_env_whose_metadata_is_none_has_no_render_modes():
    class WithoutMetadata(Counter):
        metadata = None

    env = make_vector_env(resolve_env(WithoutMetadata), 1, backend="serial")
    assert not env.metadata.get("render_modes")
    env.close()


def test_a_factory_that_cannot_be_pickled_is_refused_with_advice():
    import threading

    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"env factory .* cannot be sent to a worker.*inside it"):
        resolve_env(lambda: (lock, Counter())[1])


def test_only_names_of_user_modules_and_files_count_as_code():
    assert [is_code(name) for name in ("CartPole-v1", "toy-maze", "ALE/Pong-v5")] == [False] * 3
    assert [is_code(name) for name in ("m:f", "f.py:g", "module:Id-v0", "python:x.<lambda>")] == [True] * 4


def test_recommended_settings_of_an_env_give_way_to_settings_of_the_user(monkeypatch):
    recommended = {"opponent": "greedy", "n_steps": 256, "batch_size": 256, "timesteps": 9}
    monkeypatch.setitem(registry.RECOMMENDED_SETTINGS, "toy-maze", recommended)
    assert registry.recommended_settings("toy-maze", {}) == recommended
    assert registry.recommended_settings("toy-work", {}) == {}
    assert registry.recommended_settings("toy-maze", {"n_steps": 64}) == {"opponent": "greedy", "timesteps": 9}
    for kwargs in ({"opponent": "random"}, ["opponent=random"]):
        assert "opponent" not in registry.recommended_settings("toy-maze", {"env_kwargs": kwargs})
    assert registry.recommended_settings("toy-maze", {"stages": []}) == {"n_steps": 256, "batch_size": 256}
    recall = registry.RECOMMENDED_SETTINGS["toy-recall"]
    assert registry.recommended_settings("toy-recall", {"timesteps": 1}).keys() == recall.keys() - {"timesteps"}
    assert registry.recommended_settings("toy-recall", {"duration": 1}).keys() == recall.keys() - {
        "timesteps",
        "learning_rate_end",
    }
    assert registry.recommended_settings("toy-recall", {"policy": "a:b"}).keys() == recall.keys() - {"recurrent"}
