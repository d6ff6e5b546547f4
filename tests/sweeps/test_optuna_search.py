"""What a sweep takes and refuses, and how its search goes, without any training."""

from pathlib import Path

import pytest

from corral.cli.main import main
from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.envs.registry import RECOMMENDED_SETTINGS
from corral.sweeps.optuna_search import SearchPlan
from corral.sweeps.request import make_request
from corral.sweeps.search_space import Choices, Range, default_search, parse_space
from corral.sweeps.trial import Outcome

BASE = {"env": "CartPole-v1"}


def run(*words):
    """The command line in this process; the exit code as a shell would see it."""
    try:
        return main([str(word) for word in words])
    except SystemExit as error:
        return error.code


def test_words_become_ranges_and_choices_of_the_fields_own_types():
    words = {
        "learning_rate": "log:1e-5:1e-3",
        "ent_coef": "0:0.05",
        "n_epochs": "3,5,10",
        "net_arch": "64x64,256x256",
        "target_kl": "none,0.02",
        "normalize_reward": "true,false",
        "activation_fn": "tanh,relu",
    }
    assert parse_space(words, BASE) == {
        "learning_rate": Range(1e-5, 1e-3, log=True),
        "ent_coef": Range(0.0, 0.05),
        "n_epochs": Choices((3, 5, 10)),
        "net_arch": Choices(("64x64", "256x256")),
        "target_kl": Choices((None, 0.02)),
        "normalize_reward": Choices((True, False)),
        "activation_fn": Choices(("tanh", "relu")),
    }
    assert parse_space({"n_epochs": "2:8"}, BASE) == {"n_epochs": Range(2, 8, is_integer=True)}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("learning_rat=1:2", "unknown setting 'learning_rat' (did you mean 'learning_rate'?)"),
        ("lr=1:2", "did you mean 'learning_rate'?"),
        ("learning_rate=0:1e-3", "learning_rate '0': should be greater than 0"),
        ("gamma=0.9:1.5", "gamma '1.5': should be less than or equal to 1"),
        ("ent_coef=log:0:0.1", "a logarithmic range should begin above 0"),
        ("ent_coef=0.1:0", "the range should begin below its end"),
        ("ent_coef=0:1:2", "should be a range a:b or log:a:b, or values a,b,c"),
        ("ent_coef=0.1", "at least two different values"),
        ("n_epochs=3,3", "at least two different values"),
        ("n_epochs=3,2.5", "n_epochs '2.5'"),
        ("net_arch=64x,32", "net_arch"),
        ("activation_fn=tanh,sin", "activation_fn 'sin'"),
        ("activation_fn=a:b", "a range is for numbers"),
        ("n_steps=32:64", "must fit each other, so list the values"),
        ("batch_size=32,100", "batch_size=100 cannot be tried together: batch_size 100 does not divide"),
        ("timesteps=1,2", "timesteps is the same for every trial"),
        ("stages=1,2", "stages does not change what is learned"),
        ("pool_size=5,20", "pool_size 5 has no effect without an opponent that is checkpoint or current"),
        ("backend=serial,worker", "backend does not change what is learned"),
        ("ent_coef", "should be name=values"),
        ("ent_coef=0:1 ent_coef=0:2", "ent_coef is given twice"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(tmp_path, capsys, words, complaint):
    assert run("sweep", "CartPole-v1", "--trials", "3", "--search", *words.split()) == 2
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "what should be tried?"),
        (["--preset", "D"], "unknown preset 'D'"),
        (["--preset", "A", "--trials", "3"], "presets are tried as they are"),
        (["--preset", "C", "--num-episodes", "9"], "preset C: learning_rate_end needs timesteps"),
        (["--preset", "A", "--n-envs", "auto"], "the same n_envs, a number"),
        (["--preset", "A", "--seeds", "0"], "seeds 0: should be from 1"),
        (["--preset", "A", "--jobs", "0"], "jobs 0: should be from 1"),
        (["--trials", "0"], "trials 0: should be from 1"),
        (["--presets", "none.yaml"], "cannot read presets 'none.yaml'"),
        (["--presets", "typo.yaml"], "preset mine: unknown setting 'n_epoch' (did you mean 'n_epochs'?)"),
        (["--presets", "budget.yaml"], "preset long: timesteps is the same for all presets"),
        (["--presets", "code.yaml"], "preset own: policy is the same for all presets"),
        (["--presets", "flat.yaml"], "ent_coef should hold settings, not 0.1"),
        (["--presets", "slash.yaml"], "its name becomes a directory"),
        (["--preset", "A", "--env-kwargs", "speed=3"], "unexpected keyword argument 'speed'"),
        (["--preset", "A", "--output-dir", "full"], "is not empty"),
    ],
)
def test_mistakes_write_nothing(tmp_path, capsys, words, complaint):
    Path("typo.yaml").write_text("mine: {n_epoch: 3}\n")
    Path("budget.yaml").write_text("long: {timesteps: 3}\n")
    Path("code.yaml").write_text("own: {policy: 'somewhere:network'}\n")
    Path("flat.yaml").write_text("ent_coef: 0.1\n")
    Path("slash.yaml").write_text("../up: {ent_coef: 0.1}\n")
    Path("full").mkdir()
    Path("full/file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert run("sweep", "CartPole-v1", *words) == 2
    assert complaint in capsys.readouterr().err
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "runs"] == before


def test_the_default_space_leaves_out_what_is_set_and_what_does_not_fit():
    assert {"learning_rate", "n_steps", "batch_size", "net_arch"} <= default_search(BASE, BASE).keys()
    settings = {**BASE, "learning_rate": 1e-3, "timesteps": 30_000, "batch_size": 64}
    words = default_search(settings, settings)
    assert "learning_rate" not in words and "batch_size" not in words
    assert words["n_steps"] == "128,512"  # with 2048 there would be two rollouts
    with pytest.raises(UsageError, match="say what to search"):
        default_search(BASE, parse_config(BASE).model_dump())


def test_opponents_and_experts_can_be_searched():
    words = {"opponent": "random,mixed:random=1, greedy=3,current", "expert": "none,greedy", "snapshot_freq": "10:20"}
    base = {**BASE, "opponent": "checkpoint"}
    assert parse_space(words, base) == {
        "opponent": Choices(("random", "mixed:random=1, greedy=3", "current")),
        "expert": Choices((None, "greedy")),
        "snapshot_freq": Range(10, 20, is_integer=True),
    }


def test_what_a_built_in_env_brings_is_part_of_what_is_asked():
    def asked(settings, presets=None):
        return make_request("card-battle", {"seed": 1, **settings}, presets, None, None if presets else 3, 1, 1, True)

    request = asked({"learning_rate": 3e-4})
    assert request.settings == {**RECOMMENDED_SETTINGS["card-battle"], "learning_rate": 3e-4}
    assert "ent_coef" in request.search and "learning_rate" not in request.search
    assert "timesteps" not in asked({"num_episodes": 9}).settings
    stages = [{"name": "easy", "opponent": "random", "timesteps": 10}]
    request = asked({}, {"a": {"ent_coef": 0.0}, "b": {"stages": stages}, "c": {"n_steps": 128}})
    assert request.settings["timesteps"] == 300_000 and request.config_of(request.presets["b"]).opponent is None
    assert request.presets["a"] == {"ent_coef": 0.0, "opponent": "greedy", "batch_size": 256}
    assert request.presets["c"] == {"n_steps": 128, "opponent": "greedy"}


def plan_of(journal, trials=12, **settings):
    search = {"learning_rate": "log:1e-6:1e-2", "n_epochs": "3,10"}
    request = make_request("CartPole-v1", {"seed": 1, **settings}, None, search, trials, 1, 1, True)
    return SearchPlan(request, Path(journal))


def play(plan, most=99):
    """Carry out trials whose reward is their learning rate, reported at every tenth of the budget."""
    tried = []
    while len(tried) < most and (entry := plan.next()) is not None:
        rate = entry.varied["learning_rate"]
        pruned = any(plan.report(entry.label, 0, tenth / 10, rate) for tenth in range(1, 11))
        plan.record(entry.label, Outcome("pruned") if pruned else Outcome("complete", rate))
        tried.append(entry)
    return tried


def test_the_search_begins_with_the_settings_as_they_are_and_gives_up_the_worse_half():
    plan = plan_of("journal.log", learning_rate=3e-4)
    tried = play(plan)
    assert len(tried) == 12 and tried[0].varied == {"learning_rate": 3e-4, "n_epochs": 10}
    states = [entry.state for entry in plan.entries()]
    assert states[:5] == ["complete"] * 5 and "pruned" in states
    kept = [entry.objective for entry in plan.entries() if entry.state == "complete"]
    given_up = [entry.varied["learning_rate"] for entry in plan.entries() if entry.state == "pruned"]
    assert max(given_up) < max(kept) and all(
        entry.objective is None for entry in plan.entries() if entry.state == "pruned"
    )


def test_a_search_that_was_cut_off_goes_on_as_it_would_have():
    whole = [entry.varied for entry in play(plan_of("whole.log"))]
    play(plan_of("cut.log"), most=4)
    plan = plan_of("cut.log")
    under_way = plan.next()
    assert plan.report(under_way.label, 0, 0.3, 0.5) is False
    with Path("cut.log").open("ab") as file:
        file.write(b'{"op_code":5,"work')  # and the process is killed while it writes
    plan = plan_of("cut.log")
    assert [entry.state for entry in plan.entries()] == ["complete"] * 4 + ["begun"]
    again = plan.next()
    assert again == under_way
    plan.record(again.label, Outcome("complete", again.varied["learning_rate"]))
    play(plan)
    assert [entry.varied for entry in plan.entries()] == whole
    assert all(entry.state != "begun" for entry in plan.entries())


def test_a_search_goes_on_wherever_its_journal_ends():
    """A kill may come between two settings of one trial, which together fit and one by one do not."""
    search = {"n_steps": "100,200", "batch_size": "50,100", "gamma": "0.9:0.999", "learning_rate": "log:1e-5:1e-2"}
    request = make_request("CartPole-v1", {"seed": 1, "n_envs": 2}, None, search, 8, 1, 1, True)
    journal = Path("journal.log")

    def finish():
        plan = SearchPlan(request, journal)
        while (entry := plan.next()) is not None:
            plan.record(entry.label, Outcome("complete", 1.0))
        return [(entry.state, entry.varied) for entry in plan.entries()]

    undisturbed = finish()
    assert [state for state, _ in undisturbed] == ["complete"] * 8
    lines = journal.read_bytes().splitlines(keepends=True)
    for end in range(len(lines)):
        journal.write_bytes(b"".join(lines[:end]))
        assert finish() == undisturbed, lines[end]


def test_trials_with_longer_rollouts_are_compared_at_the_same_share_of_the_budget():
    plan = plan_of("journal.log", trials=6)
    for _ in range(5):
        entry = plan.next()
        for tenth in range(1, 11):
            plan.report(entry.label, 0, tenth / 10, 100.0)
        plan.record(entry.label, Outcome("complete", 100.0))
    entry = plan.next()
    assert plan.report(entry.label, 0, 0.37, None) is False  # no episode has ended yet
    assert plan.report(entry.label, 1, 0.5, 1.0) is False  # only the first seed counts
    assert plan.report(entry.label, 0, 0.63, 1.0) is True


def test_a_damaged_journal_is_named():
    Path("journal.log").write_text("{\nnonsense\n")
    with pytest.raises(UsageError, match=r"journal.log is damaged at line 1"):
        plan_of("journal.log")
