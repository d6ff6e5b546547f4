"""Sweep requests and the search with Optuna, tested without training."""

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


def run_cli(*arguments):
    """Run the command line in this process and return the exit code that a shell would see."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:
        return error.code


def test_search_texts_are_parsed_into_ranges_and_choices_of_the_settings_types():
    search = {
        "learning_rate": "log:1e-5:1e-3",
        "ent_coef": "0:0.05",
        "n_epochs": "3,5,10",
        "net_arch": "64x64,256x256",
        "target_kl": "none,0.02",
        "normalize_reward": "true,false",
        "activation_fn": "tanh,relu",
    }
    assert parse_space(search, BASE) == {
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
    ("search", "message"),
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
def test_an_invalid_search_space_is_refused_before_anything_is_written(tmp_path, capsys, search, message):
    assert run_cli("sweep", "CartPole-v1", "--trials", "3", "--search", *search.split()) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_invalid_sweep_commands_are_refused_before_anything_is_written(tmp_path, capsys, arguments, message):
    Path("typo.yaml").write_text("mine: {n_epoch: 3}\n")
    Path("budget.yaml").write_text("long: {timesteps: 3}\n")
    Path("code.yaml").write_text("own: {policy: 'somewhere:network'}\n")
    Path("flat.yaml").write_text("ent_coef: 0.1\n")
    Path("slash.yaml").write_text("../up: {ent_coef: 0.1}\n")
    Path("full").mkdir()
    Path("full/file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert run_cli("sweep", "CartPole-v1", *arguments) == 2
    assert message in capsys.readouterr().err
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "runs"] == before


def test_the_default_search_space_leaves_out_given_settings_and_values_that_do_not_fit():
    assert {"learning_rate", "n_steps", "batch_size", "net_arch"} <= default_search(BASE, BASE).keys()
    settings = {**BASE, "learning_rate": 1e-3, "timesteps": 30_000, "batch_size": 64}
    search = default_search(settings, settings)
    assert "learning_rate" not in search and "batch_size" not in search
    assert search["n_steps"] == "128,512"  # with 2048 steps the budget would be only two rollouts
    with pytest.raises(UsageError, match="say what to search"):
        default_search(BASE, parse_config(BASE).model_dump())


def test_opponents_and_experts_can_be_searched():
    search = {"opponent": "random,mixed:random=1, greedy=3,current", "expert": "none,greedy", "snapshot_freq": "10:20"}
    base = {**BASE, "opponent": "checkpoint"}
    assert parse_space(search, base) == {
        "opponent": Choices(("random", "mixed:random=1, greedy=3", "current")),
        "expert": Choices((None, "greedy")),
        "snapshot_freq": Range(10, 20, is_integer=True),
    }


def test_a_sweep_request_includes_the_recommended_settings_of_a_built_in_env():
    def request_of(settings, presets=None):
        return make_request("card-battle", {"seed": 1, **settings}, presets, None, None if presets else 3, 1, 1, True)

    request = request_of({"learning_rate": 3e-4})
    assert request.settings == {**RECOMMENDED_SETTINGS["card-battle"], "learning_rate": 3e-4}
    assert "ent_coef" in request.search and "learning_rate" not in request.search
    assert "timesteps" not in request_of({"num_episodes": 9}).settings
    stages = [{"name": "easy", "opponent": "random", "timesteps": 10}]
    request = request_of({}, {"a": {"ent_coef": 0.0}, "b": {"stages": stages}, "c": {"n_steps": 128}})
    assert request.settings["timesteps"] == 300_000 and request.config_of(request.presets["b"]).opponent is None
    assert request.presets["a"] == {"ent_coef": 0.0, "opponent": "greedy", "batch_size": 256}
    assert request.presets["c"] == {"n_steps": 128, "opponent": "greedy"}


def make_plan(journal, trials=12, **settings):
    search = {"learning_rate": "log:1e-6:1e-2", "n_epochs": "3,10"}
    request = make_request("CartPole-v1", {"seed": 1, **settings}, None, search, trials, 1, 1, True)
    return SearchPlan(request, Path(journal))


def run_trials(plan, max_trials=99):
    """Run trials without training: their reward is their learning rate, reported at every tenth of the budget."""
    trials = []
    while len(trials) < max_trials and (entry := plan.next()) is not None:
        rate = entry.varied["learning_rate"]
        pruned = any(plan.report(entry.label, 0, tenth / 10, rate) for tenth in range(1, 11))
        plan.record(entry.label, Outcome("pruned") if pruned else Outcome("complete", rate))
        trials.append(entry)
    return trials


def test_the_search_begins_with_the_given_settings_and_prunes_trials_below_the_median():
    plan = make_plan("journal.log", learning_rate=3e-4)
    trials = run_trials(plan)
    assert len(trials) == 12 and trials[0].varied == {"learning_rate": 3e-4, "n_epochs": 10}
    states = [entry.state for entry in plan.entries()]
    assert states[:5] == ["complete"] * 5 and "pruned" in states
    objectives = [entry.objective for entry in plan.entries() if entry.state == "complete"]
    pruned = [entry for entry in plan.entries() if entry.state == "pruned"]
    assert max(entry.varied["learning_rate"] for entry in pruned) < max(objectives)
    assert all(entry.objective is None for entry in pruned)


def test_an_interrupted_search_continues_as_without_the_interruption():
    uninterrupted = [entry.varied for entry in run_trials(make_plan("uninterrupted.log"))]
    run_trials(make_plan("interrupted.log"), max_trials=4)
    plan = make_plan("interrupted.log")
    running = plan.next()
    assert plan.report(running.label, 0, 0.3, 0.5) is False
    with Path("interrupted.log").open("ab") as file:
        file.write(b'{"op_code":5,"work')  # as if the process was killed while it wrote a line
    plan = make_plan("interrupted.log")
    assert [entry.state for entry in plan.entries()] == ["complete"] * 4 + ["begun"]
    resumed = plan.next()
    assert resumed == running
    plan.record(resumed.label, Outcome("complete", resumed.varied["learning_rate"]))
    run_trials(plan)
    assert [entry.varied for entry in plan.entries()] == uninterrupted
    assert all(entry.state != "begun" for entry in plan.entries())


def test_a_search_continues_from_a_journal_cut_after_any_line():
    """A kill may come between two settings of a trial (n_steps and batch_size) that are valid only together."""
    search = {"n_steps": "100,200", "batch_size": "50,100", "gamma": "0.9:0.999", "learning_rate": "log:1e-5:1e-2"}
    request = make_request("CartPole-v1", {"seed": 1, "n_envs": 2}, None, search, 8, 1, 1, True)
    journal = Path("journal.log")

    def finish():
        """Run all trials that the journal does not have yet; return the state and settings of every trial."""
        plan = SearchPlan(request, journal)
        while (entry := plan.next()) is not None:
            plan.record(entry.label, Outcome("complete", 1.0))
        return [(entry.state, entry.varied) for entry in plan.entries()]

    uninterrupted = finish()
    assert [state for state, _ in uninterrupted] == ["complete"] * 8
    lines = journal.read_bytes().splitlines(keepends=True)
    for end in range(len(lines)):
        journal.write_bytes(b"".join(lines[:end]))
        assert finish() == uninterrupted, lines[end]


def test_a_trial_is_compared_with_others_at_the_same_share_of_the_budget():
    plan = make_plan("journal.log", trials=6)
    for _ in range(5):
        entry = plan.next()
        for tenth in range(1, 11):
            plan.report(entry.label, 0, tenth / 10, 100.0)
        plan.record(entry.label, Outcome("complete", 100.0))
    entry = plan.next()
    assert plan.report(entry.label, 0, 0.37, None) is False  # no episode has ended yet
    assert plan.report(entry.label, 1, 0.5, 1.0) is False  # only the first seed counts
    assert plan.report(entry.label, 0, 0.63, 1.0) is True


def test_a_damaged_journal_is_refused_with_its_name_and_line():
    Path("journal.log").write_text("{\nnonsense\n")
    with pytest.raises(UsageError, match=r"journal.log is damaged at line 1"):
        make_plan("journal.log")
