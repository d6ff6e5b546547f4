"""The league: how opponents are drawn, kept in checkpoints and rated, and when the stages of a curriculum end."""

import json
from pathlib import Path

import numpy as np
import pytest

import corral
from corral.config.schema import parse_config
from corral.config.values import Stage
from corral.core.errors import CheckpointError, EnvFault, UsageError
from corral.core.sums import parse_mix
from corral.core.types import EpisodeRecord
from corral.envs.opponent_protocol import outcome
from corral.opponents.league import Opponents, StageResult
from corral.opponents.sampling import OpponentTableSpec, SharedOpponentTable
from corral.storage.checkpoint import newest_checkpoint
from corral.storage.metrics_file import read_metrics
from tests.toy_envs import Counter, Cursed, HighCard, HighCardWithState, Leveled, MortalHighCard

MIX = "mixed:checkpoint=0.3,miser=0.3,current=0.2,random=0.2"
SMALL = {
    "n_envs": 4,
    "n_steps": 32,
    "batch_size": 64,
    "n_epochs": 2,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
    "seed": 3,
    "opponent": MIX,
    "snapshot_freq": 256,
    "pool_size": 3,
}
WITHOUT_OPPONENT = {key: value for key, value in SMALL.items() if key not in ("opponent", "pool_size", "snapshot_freq")}
BACKENDS = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2}, {"backend": "process", "num_workers": 3}]


def train(env, steps, name, **settings):
    """Train in the directory ``name`` and return the summary. Pool settings are left out for mixes without a pool."""
    mix = str(settings.get("opponent", MIX))
    settings = {**SMALL, **settings}
    if "checkpoint" not in mix and "current" not in mix:
        settings = {key: value for key, value in settings.items() if key not in ("pool_size", "snapshot_freq")}
    return corral.train(env, **{**settings, "timesteps": steps, "output_dir": name}).summary


def opponent_metrics(name):
    """Return the metrics about opponents of every iteration of a run."""
    rows = read_metrics(Path(name, "metrics.jsonl"))
    return [{key: row[key] for key in row if key.startswith("opponents/")} for row in rows]


@pytest.mark.parametrize(
    ("env", "overlap"),
    [
        (HighCard, True),
        (HighCardWithState, False),
        pytest.param(HighCard, False, marks=pytest.mark.deep),
        pytest.param(HighCardWithState, True, marks=pytest.mark.deep),
    ],
)
def test_self_play_is_the_same_in_every_backend_and_after_every_resume(env, overlap, capfd):
    reference = train(env, 1536, "reference", overlap=overlap, **BACKENDS[0])
    for i, backend in enumerate(BACKENDS):
        train(env, 512, f"run{i}", overlap=overlap, **backend)
        corral.resume(f"run{i}", env=env, timesteps=1024, quiet=True, **BACKENDS[i - 1])
        resumed = corral.resume(f"run{i}", env=env, timesteps=1536, quiet=True, **BACKENDS[i - 2]).summary
        assert resumed.weights_sha256 == reference.weights_sha256
        assert (resumed.episodes, resumed.win_rates) == (reference.episodes, reference.win_rates)
        assert opponent_metrics(f"run{i}") == opponent_metrics("reference")
    assert {"random", "miser", "current", "checkpoint"} == reference.win_rates.keys()
    assert "could not be restored" not in capfd.readouterr().err


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=["worker", "process"])
def test_worker_deaths_do_not_change_the_result_of_self_play(backend, capfd):
    reference = train(HighCard, 1536, "reference", **BACKENDS[0])
    Path("deaths").mkdir()
    kwargs = {"directory": str(Path("deaths").absolute())}
    recovered = train(MortalHighCard, 1536, "recovered", env_kwargs=kwargs, **backend)
    assert recovered.restarts >= 3 and recovered.inexact == 0
    assert (recovered.weights_sha256, recovered.win_rates) == (reference.weights_sha256, reference.win_rates)
    assert opponent_metrics("recovered") == opponent_metrics("reference")


def test_the_pool_keeps_the_newest_snapshots_and_its_weights_are_in_the_checkpoint():
    train(HighCard, 2048, "run", **BACKENDS[0])
    checkpoint = newest_checkpoint(Path("run/checkpoints")).checkpoint
    pool = checkpoint.state["opponents"]["pool"]
    assert len(pool) == 3 and [past_self["step"] for past_self in pool] == [1280, 1536, 1792]
    assert {f"{past_self['slot']}/log_std" for past_self in pool} <= set(checkpoint.opponents)
    slots_in_use = {int(number) - 2 for number in checkpoint.envs["opponent"] if number >= 2}  # after random and miser
    assert slots_in_use <= {int(name.split("/")[0]) for name in checkpoint.opponents}


def test_a_curriculum_stage_ends_by_its_win_rate_or_its_budget():
    stages = [
        {"name": "easy", "opponent": "miser", "timesteps": 100_000, "win_rate": 0.6, "games": 50},
        {"name": "hard", "opponent": "mixed:random=1,miser=1", "timesteps": 512, "win_rate": 1.0},
    ]
    result = train(HighCard, 100_000, "run", opponent=None, stages=stages)
    easy, hard = result.stages
    assert easy["win_rate"] >= 0.6 and easy["steps"] < 50_000 and hard["steps"] == 512
    assert result.exit_reason == "stages" and result.steps == easy["steps"] + 512
    resumed = corral.resume("run", env=HighCard, quiet=True).summary
    assert (resumed.exit_reason, resumed.weights_sha256) == ("stages", result.weights_sha256), "it trained further"
    for stage, steps in (("easy", easy["steps"]), ("hard", result.steps)):
        rows = read_metrics(Path("run/phases", stage, "metrics.jsonl"))
        assert rows[-1]["time/total_timesteps"] == steps and Path("run/phases", stage, "progress.csv").exists()
        assert newest_checkpoint(Path("run/phases", stage, "checkpoints")).checkpoint.timesteps == steps
    stage_numbers = [row["opponents/stage"] for row in opponent_metrics("run")]
    assert stage_numbers == sorted(stage_numbers) and {*stage_numbers} == {0.0, 1.0}
    extended = corral.resume("run", env=HighCard, timesteps=result.steps + 256, quiet=True).summary
    assert extended.steps == result.steps + 256 and extended.exit_reason == "timesteps"


def test_a_resumed_curriculum_continues_in_its_stage():
    stages = [{"name": "a", "opponent": "miser", "timesteps": 512}, {"name": "b", "opponent": "random"}]
    reference = train(HighCard, 1024, "reference", opponent=None, stages=stages)
    for steps in (256, 640):
        train(HighCard, steps, f"run{steps}", opponent=None, stages=stages)
        resumed = corral.resume(f"run{steps}", env=HighCard, timesteps=1024, quiet=True).summary
        assert (resumed.weights_sha256, resumed.stages) == (reference.weights_sha256, reference.stages)


def test_games_that_began_before_a_stage_do_not_count_for_it():
    stages = [
        {"name": "a", "opponent": "miser", "timesteps": 192},
        {"name": "b", "opponent": "random", "win_rate": 0.01, "games": 64},
    ]
    settings = {"opponent": None, "stages": stages, "n_envs": 64, "n_steps": 3, "batch_size": 192}
    result = train(HighCard, 3840, "run", **settings)
    first_row, last_stage = read_metrics(Path("run/metrics.jsonl"))[0], result.stages[-1]
    assert "opponents/win_rate" not in first_row, "no game can end in three steps"
    assert last_stage["games"] >= 64 and result.win_rates.keys() == {"miser", "random"}
    rows = [row for row in opponent_metrics("run") if row["opponents/stage"] == 1]
    assert "opponents/win_rate" not in rows[0] and "opponents/win_rate/miser" in rows[0]
    assert last_stage["steps"] == result.steps - 192


def test_an_unfinished_stage_reports_its_steps_and_does_not_pass_with_too_few_games():
    stages = [
        {"name": "a", "opponent": "miser", "timesteps": 128},
        {"name": "b", "opponent": "miser", "win_rate": 0.01, "games": 10_000},
    ]
    result = train(HighCard, 512, "run", opponent=None, stages=stages)
    assert [stage["steps"] for stage in result.stages] == [128, 384]
    assert StageResult(**result.stages[1]).passed is False and result.stages[1]["win_rate"] > 0.01


def test_win_rates_against_the_current_policy_and_its_past_selves_are_separate():
    only_current = train(HighCard, 1024, "run", opponent="current", snapshot_freq=128)
    assert only_current.win_rates.keys() == {"current"}
    assert not newest_checkpoint(Path("run/checkpoints")).checkpoint.state["opponents"]["pool"]
    with_past_selves = train(HighCard, 1024, "both", opponent="mixed:current=1,checkpoint=1", snapshot_freq=128)
    assert with_past_selves.win_rates.keys() == {"current", "checkpoint"}


def test_a_fault_is_replayed_against_the_same_opponent():
    def make():
        return RaisesAgainstMiser()

    with pytest.raises(corral.CorralError) as raised:
        train(make, 4096, "run", opponent="miser", backend="serial")
    assert "miser is tired" in str(raised.value)
    (path,) = Path("run/faults").iterdir()
    assert json.loads(path.read_text())["options"] == {"opponent": "miser"}
    assert "miser is tired" in corral.replay_fault(str(path), env=make)


class RaisesAgainstMiser(HighCard):
    """Raises in every game against ``miser``, after three cards."""

    def step(self, action):
        if self.opponent == "miser" and self.played[0].sum() == 3:
            raise RuntimeError("miser is tired")
        return super().step(action)


def test_an_attribute_opponents_that_is_no_tuple_of_names_is_ignored():
    class OpponentsIsNumber(Counter):
        opponents = 3

    assert (
        corral.train(OpponentsIsNumber, timesteps=128, quiet=True, n_envs=2, n_steps=32, eval_freq=0).summary.steps
        >= 128
    )


def test_another_run_can_be_an_opponent_and_its_policy_must_not_change():
    train(HighCard, 256, "first", opponent="random")
    second = train(HighCard, 256, "second", opponent="mixed:first=1,miser=1", net_arch=[16])
    assert {"first", "miser"} == second.win_rates.keys()
    corral.resume("second", env=HighCard, timesteps=512, quiet=True)
    corral.resume("first", env=HighCard, timesteps=512, quiet=True)
    with pytest.raises(CheckpointError, match="first is no longer the policy"):
        corral.resume("second", env=HighCard, timesteps=1024, quiet=True)


def test_the_policy_learns_to_beat_its_opponent():
    summary = train(HighCard, 12_000, "run", opponent="miser", n_steps=64, learning_rate=1e-3, n_epochs=4)
    assert summary.win_rates["miser"] > 0.85


def test_invalid_opponents_are_refused_with_advice():
    with pytest.raises(UsageError, match="has no opponents to choose from"):
        train(Counter, 256, "run")
    with pytest.raises(UsageError, match=r"unknown opponent 'greedy'; there are random, miser, current"):
        train(HighCard, 256, "run", opponent="greedy")
    with pytest.raises(UsageError, match="leave opponent out"):
        train(HighCard, 256, "run", stages=[{"name": "a", "opponent": "random"}])
    for mix in ("mixed:random=x", "mixed:random=-1", "mixed:random=0"):
        with pytest.raises(UsageError, match="weight"):
            train(HighCard, 256, "run", opponent=mix)
    assert not Path("run").exists()


def test_a_mix_of_opponents_is_parsed_into_shares():
    assert parse_mix("greedy") == {"greedy": 1.0}
    assert parse_mix("mixed:a=1,b=3") == {"a": 0.25, "b": 0.75}
    assert parse_mix("mixed:a,b") == {"a": 0.5, "b": 0.5}
    with pytest.raises(UsageError, match="unknown opponent 'c'; there are: a, b"):
        parse_mix("mixed:a=1,c=1", ("a", "b"))
    assert [outcome(1.0, True), outcome(-0.2, True), outcome(0.0, True), outcome(1.0, False)] == [1.0, 0.0, 0.5, 0.5]


def make_opponent_table():
    """Return a table of the two opponents of ``HighCard``, without frozen policies and slots."""
    env = HighCard()
    env_opponents = (("random", {}), ("miser", {}))
    spec = OpponentTableSpec(env_opponents, (), 0, None, env.observation_space, env.action_space)
    return SharedOpponentTable(spec, {})


def test_draws_of_opponents_follow_the_probabilities_and_depend_only_on_the_seed():
    opponent_table = make_opponent_table()
    opponent_table.set_probabilities([0.25, 0.75])
    draws = [opponent_table.opponent_sampler.draw(seed) for seed in range(4000)]
    assert abs(np.mean(draws) - 0.75) < 0.03
    assert draws == [opponent_table.opponent_sampler.draw(seed) for seed in range(4000)]
    opponent_table.set_probabilities([0.0, 1.0])
    assert {opponent_table.opponent_sampler.draw(seed) for seed in range(100)} == {1}
    opponent_table.close()


def test_elo_ratings_rise_with_wins_and_the_weakest_opponent_keeps_its_first_rating():
    opponent_table = make_opponent_table()
    opponents = Opponents(parse_config({"env": "x", "opponent": "mixed:random=1,miser=1"}), opponent_table)
    games = [
        EpisodeRecord(0, 1.0, 5, False, float(number == 0 or i % 4 == 0), number)
        for i in range(200)
        for number in (0, 1)
    ]
    opponents.record_games(games, 1000)
    metrics = opponents.metrics()
    assert metrics["opponents/rating/random"] == 1000 < metrics["opponents/rating"] < metrics["opponents/rating/miser"]
    assert metrics["opponents/win_rate/random"] == 1.0 and metrics["opponents/win_rate/miser"] == 0.25
    assert json.loads(json.dumps(opponents.state())) == opponents.state()
    opponent_table.close()


def test_stages_are_read_from_a_config_file_and_written_back():
    Path("c.yaml").write_text(
        "stages:\n- {name: a, opponent: random, timesteps: 300, win_rate: 0.9}\n- {name: b, opponent: miser, timesteps: 200}\n"
    )
    corral.train(HighCard, config="c.yaml", output_dir="run", **WITHOUT_OPPONENT)
    config = parse_config(
        {"env": "x", "stages": [Stage(name="a", opponent="r", timesteps=5), {"name": "b", "opponent": "r"}]}
    )
    assert config.stages[1].timesteps is None and config.timesteps == 5 + 100_000
    assert [stage["name"] for stage in json.loads(Path("run/summary.json").read_text())["stages"]] == ["a", "b"]
    with pytest.raises(UsageError, match="each needs a name of its own"):
        parse_config({"env": "x", "stages": [{"name": "a", "opponent": "r", "timesteps": 5}] * 2})
    with pytest.raises(UsageError, match="every one but the last needs timesteps"):
        parse_config({"env": "x", "stages": [{"name": "a", "opponent": "r"}, {"name": "b", "opponent": "r"}]})


LEVELS = [{"name": "easy", "options": {"level": 1}, "timesteps": 256}, {"name": "hard", "options": {"level": 5}}]


def test_stages_with_options_are_the_same_in_every_backend_and_after_every_resume():
    small = {**WITHOUT_OPPONENT, "stages": LEVELS, "n_envs": 3, "batch_size": 96}
    reference = corral.train(Leveled, **small, timesteps=960, output_dir="reference").summary
    rows = read_metrics(Path("reference/metrics.jsonl"))
    levels = [row["info/level"] for row in rows]
    # The new options apply from the next episodes on, so the rollout after the change has both levels.
    assert levels[0] == levels[1] == 1 and 1 < levels[3] < 5 and levels[-1] == 5
    assert [row["opponents/stage"] for row in rows] == [0] * 3 + [1] * 7
    assert not any(name.startswith("opponents/rating") for name in rows[-1])
    easy, hard = reference.stages
    assert (easy["played"], easy["steps"], easy["reward"]) == ("with level=1", 288, 15) and hard["reward"] == 75
    for i, backend in enumerate(BACKENDS[1:]):
        corral.train(Leveled, **small, timesteps=288 + 96 * i, output_dir=f"run{i}", **backend)
        resumed = corral.resume(f"run{i}", env=Leveled, timesteps=960, quiet=True, **BACKENDS[i]).summary
        assert (resumed.weights_sha256, resumed.stages) == (reference.weights_sha256, reference.stages)
    assert read_metrics(Path("reference/phases/easy/metrics.jsonl"))[-1]["time/total_timesteps"] == 288


def test_evaluation_uses_the_options_of_the_last_stage():
    settings = {**WITHOUT_OPPONENT, "eval_freq": 128}
    result = corral.train(Leveled, **settings, stages=LEVELS, timesteps=256, output_dir="run")
    assert result.summary.eval_reward == result.summary.best_eval_reward == 75


def test_a_fault_file_holds_the_options_of_its_stage():
    stages = [{"name": "a", "options": {"level": 1}, "timesteps": 8}, {"name": "b", "options": {"level": 3}}]
    settings = {"n_envs": 1, "n_steps": 8, "batch_size": 8, "timesteps": 16, "backend": "serial", "quiet": True}
    with pytest.raises(EnvFault, match="level 3"):
        corral.train(Cursed, stages=stages, output_dir="run", **settings)
    assert {json.loads(fault.read_text())["options"]["level"] for fault in Path("run/faults").iterdir()} == {3}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"name": "a"}], "either an opponent or options"),
        ([{"name": "a", "opponent": "x", "options": {"b": 1}}], "either an opponent or options"),
        ([{"name": "a", "opponent": "x", "timesteps": 5}, {"name": "b", "options": {"b": 1}}], "either all have"),
        ([{"name": "a", "options": {"b": {1, 2}}}], "a config holds numbers"),
        ([{"name": "a", "optoins": {"b": 1}, "opponent": "x"}], "optoins of stage 0.*extra inputs"),
        ([{"name": "current", "options": {"b": 1}}], "give it another name"),
    ],
)
def test_invalid_stages_are_refused(stages, message):
    with pytest.raises(UsageError, match=message):
        parse_config({"env": "x", "stages": stages})
