"""Who plays the other side: drawn alike everywhere, pinned for the episode, kept in checkpoints, and counted."""

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
from corral.opponents.table import OpponentTableSpec, SharedOpponentTable
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
PLACES = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2}, {"backend": "process", "num_workers": 3}]


def train(env, steps, name, **settings):
    mix = str(settings.get("opponent", MIX))
    settings = {**SMALL, **settings}
    if "checkpoint" not in mix and "current" not in mix:
        settings = {key: value for key, value in settings.items() if key not in ("pool_size", "snapshot_freq")}
    return corral.train(env, **{**settings, "timesteps": steps, "output_dir": name}).summary


def told(name):
    return [
        {key: row[key] for key in row if key.startswith("opponents/")}
        for row in read_metrics(Path(name, "metrics.jsonl"))
    ]


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
    whole = train(env, 1536, "whole", overlap=overlap, **PLACES[0])
    for i, place in enumerate(PLACES):
        train(env, 512, f"run{i}", overlap=overlap, **place)
        corral.resume(f"run{i}", env=env, timesteps=1024, quiet=True, **PLACES[i - 1])
        again = corral.resume(f"run{i}", env=env, timesteps=1536, quiet=True, **PLACES[i - 2]).summary
        assert again.weights_sha256 == whole.weights_sha256
        assert (again.episodes, again.win_rates) == (whole.episodes, whole.win_rates)
        assert told(f"run{i}") == told("whole")
    assert {"random", "miser", "current", "checkpoint"} == whole.win_rates.keys()
    assert "brought back" not in capfd.readouterr().err


@pytest.mark.parametrize("place", PLACES[1:], ids=["worker", "process"])
def test_workers_that_die_leave_no_trace_in_self_play(place, capfd):
    whole = train(HighCard, 1536, "whole", **PLACES[0])
    Path("deaths").mkdir()
    kwargs = {"directory": str(Path("deaths").absolute())}
    healed = train(MortalHighCard, 1536, "healed", env_kwargs=kwargs, **place)
    assert healed.restarts >= 3
    assert (healed.weights_sha256, healed.win_rates, healed.inexact) == (whole.weights_sha256, whole.win_rates, 0)
    assert told("healed") == told("whole")


def test_a_pool_never_grows_beyond_its_size_and_its_weights_are_in_the_checkpoint():
    train(HighCard, 2048, "run", **PLACES[0])
    found = newest_checkpoint(Path("run/checkpoints")).checkpoint
    pool = found.state["opponents"]["pool"]
    assert len(pool) == 3 and [past["step"] for past in pool] == [1280, 1536, 1792]
    assert {f"{past['slot']}/log_std" for past in pool} <= set(found.opponents)
    playing = {int(number) - 2 for number in found.envs["opponent"] if number >= 2}
    assert playing <= {int(name.split("/")[0]) for name in found.opponents}


def test_a_curriculum_is_promoted_by_its_win_rate_or_its_budget_and_says_so():
    stages = [
        {"name": "easy", "opponent": "miser", "timesteps": 100_000, "win_rate": 0.6, "games": 50},
        {"name": "hard", "opponent": "mixed:random=1,miser=1", "timesteps": 512, "win_rate": 1.0},
    ]
    result = train(HighCard, 100_000, "run", opponent=None, stages=stages)
    easy, hard = result.stages
    assert easy["win_rate"] >= 0.6 and easy["steps"] < 50_000 and hard["steps"] == 512
    assert result.exit_reason == "stages" and result.steps == easy["steps"] + 512
    again = corral.resume("run", env=HighCard, quiet=True).summary
    assert (again.exit_reason, again.weights_sha256) == ("stages", result.weights_sha256), "it has ended"
    for phase, steps in (("easy", easy["steps"]), ("hard", result.steps)):
        rows = read_metrics(Path("run/phases", phase, "metrics.jsonl"))
        assert rows[-1]["time/total_timesteps"] == steps and Path("run/phases", phase, "progress.csv").exists()
        assert newest_checkpoint(Path("run/phases", phase, "checkpoints")).checkpoint.timesteps == steps
    numbers = [row["opponents/stage"] for row in told("run")]
    assert numbers == sorted(numbers) and {*numbers} == {0.0, 1.0}
    more = corral.resume("run", env=HighCard, timesteps=result.steps + 256, quiet=True).summary
    assert more.steps == result.steps + 256 and more.exit_reason == "timesteps"


def test_a_curriculum_goes_on_in_its_stage_after_a_resume():
    stages = [{"name": "a", "opponent": "miser", "timesteps": 512}, {"name": "b", "opponent": "random"}]
    whole = train(HighCard, 1024, "whole", opponent=None, stages=stages)
    for steps in (256, 640):
        train(HighCard, steps, f"run{steps}", opponent=None, stages=stages)
        again = corral.resume(f"run{steps}", env=HighCard, timesteps=1024, quiet=True).summary
        assert (again.weights_sha256, again.stages) == (whole.weights_sha256, whole.stages)


def test_games_that_began_before_a_stage_do_not_count_for_it():
    stages = [
        {"name": "a", "opponent": "miser", "timesteps": 192},
        {"name": "b", "opponent": "random", "win_rate": 0.01, "games": 64},
    ]
    many = {"opponent": None, "stages": stages, "n_envs": 64, "n_steps": 3, "batch_size": 192}
    result = train(HighCard, 3840, "run", **many)
    before, last = read_metrics(Path("run/metrics.jsonl"))[0], result.stages[-1]
    assert "opponents/win_rate" not in before, "no game has ended in three steps"
    assert last["games"] >= 64 and result.win_rates.keys() == {"miser", "random"}
    rows = [row for row in told("run") if row["opponents/stage"] == 1]
    assert "opponents/win_rate" not in rows[0] and "opponents/win_rate/miser" in rows[0]
    assert last["steps"] == result.steps - 192


def test_a_stage_that_is_under_way_tells_its_steps_and_passes_only_with_enough_games():
    stages = [
        {"name": "a", "opponent": "miser", "timesteps": 128},
        {"name": "b", "opponent": "miser", "win_rate": 0.01, "games": 10_000},
    ]
    result = train(HighCard, 512, "run", opponent=None, stages=stages)
    assert [stage["steps"] for stage in result.stages] == [128, 384]
    assert StageResult(**result.stages[1]).passed is False and result.stages[1]["win_rate"] > 0.01


def test_games_against_the_policy_itself_are_told_from_those_against_its_past():
    alone = train(HighCard, 1024, "run", opponent="current", snapshot_freq=128)
    assert alone.win_rates.keys() == {"current"}
    assert not newest_checkpoint(Path("run/checkpoints")).checkpoint.state["opponents"]["pool"]
    both = train(HighCard, 1024, "both", opponent="mixed:current=1,checkpoint=1", snapshot_freq=128)
    assert both.win_rates.keys() == {"current", "checkpoint"}


def test_a_fault_is_replayed_against_the_same_opponent():
    def broken():
        return Tired()

    with pytest.raises(corral.CorralError) as raised:
        train(broken, 4096, "run", opponent="miser", backend="serial")
    assert "miser is tired" in str(raised.value)
    (path,) = Path("run/faults").iterdir()
    assert json.loads(path.read_text())["options"] == {"opponent": "miser"}
    assert "miser is tired" in corral.replay_fault(str(path), env=broken)


class Tired(HighCard):
    """Raises in every game against a certain opponent, once that has played a few."""

    def step(self, action):
        if self.opponent == "miser" and self.played[0].sum() == 3:
            raise RuntimeError("miser is tired")
        return super().step(action)


def test_whatever_else_an_env_calls_opponents_does_not_matter():
    class Odd(Counter):
        opponents = 3

    assert corral.train(Odd, timesteps=128, quiet=True, n_envs=2, n_steps=32, eval_freq=0).summary.steps >= 128


def test_another_run_is_an_opponent_and_must_stay_what_it_was():
    train(HighCard, 256, "first", opponent="random")
    second = train(HighCard, 256, "second", opponent="mixed:first=1,miser=1", net_arch=[16])
    assert {"first", "miser"} == second.win_rates.keys()
    corral.resume("second", env=HighCard, timesteps=512, quiet=True)
    corral.resume("first", env=HighCard, timesteps=512, quiet=True)
    with pytest.raises(CheckpointError, match="first is no longer the policy"):
        corral.resume("second", env=HighCard, timesteps=1024, quiet=True)


def test_the_policy_learns_to_beat_the_opponent_that_it_is_given():
    weak = train(HighCard, 12_000, "run", opponent="miser", n_steps=64, learning_rate=1e-3, n_epochs=4)
    assert weak.win_rates["miser"] > 0.85


def test_what_cannot_be_an_opponent_is_refused_with_advice():
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


def test_mixes_are_shares():
    assert parse_mix("greedy") == {"greedy": 1.0}
    assert parse_mix("mixed:a=1,b=3") == {"a": 0.25, "b": 0.75}
    assert parse_mix("mixed:a,b") == {"a": 0.5, "b": 0.5}
    with pytest.raises(UsageError, match="unknown opponent 'c'; there are: a, b"):
        parse_mix("mixed:a=1,c=1", ("a", "b"))
    assert [outcome(1.0, True), outcome(-0.2, True), outcome(0.0, True), outcome(1.0, False)] == [1.0, 0.0, 0.5, 0.5]


def test_opponents_are_drawn_as_often_as_the_mix_says_and_by_the_seed_alone():
    space = HighCard().observation_space, HighCard().action_space
    opponent_table = SharedOpponentTable(OpponentTableSpec((("random", {}), ("miser", {})), (), 0, None, *space), {})
    opponent_table.set_probabilities([0.25, 0.75])
    drawn = [opponent_table.opponent_sampler.draw(seed) for seed in range(4000)]
    assert abs(np.mean(drawn) - 0.75) < 0.03
    assert drawn == [opponent_table.opponent_sampler.draw(seed) for seed in range(4000)]
    opponent_table.set_probabilities([0.0, 1.0])
    assert {opponent_table.opponent_sampler.draw(seed) for seed in range(100)} == {1}
    opponent_table.close()


def test_ratings_rise_with_wins_and_the_weakest_is_the_anchor():
    space = HighCard().observation_space, HighCard().action_space
    opponent_table = SharedOpponentTable(OpponentTableSpec((("random", {}), ("miser", {})), (), 0, None, *space), {})
    opponents = Opponents(parse_config({"env": "x", "opponent": "mixed:random=1,miser=1"}), opponent_table)
    games = [
        EpisodeRecord(0, 1.0, 5, False, float(number == 0 or i % 4 == 0), number)
        for i in range(200)
        for number in (0, 1)
    ]
    opponents.record_games(games, 1000)
    told = opponents.metrics()
    assert told["opponents/rating/random"] == 1000 < told["opponents/rating"] < told["opponents/rating/miser"]
    assert told["opponents/win_rate/random"] == 1.0 and told["opponents/win_rate/miser"] == 0.25
    assert json.loads(json.dumps(opponents.state())) == opponents.state()
    opponent_table.close()


def test_stages_are_read_from_a_config_file_and_written_back():
    Path("c.yaml").write_text(
        "stages:\n- {name: a, opponent: random, timesteps: 300, win_rate: 0.9}\n- {name: b, opponent: miser, timesteps: 200}\n"
    )
    small = {name: value for name, value in SMALL.items() if name not in ("opponent", "pool_size", "snapshot_freq")}
    corral.train(HighCard, config="c.yaml", output_dir="run", **small)
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
    small = {key: value for key, value in SMALL.items() if key not in ("opponent", "pool_size", "snapshot_freq")}
    small |= {"stages": LEVELS, "n_envs": 3, "batch_size": 96}
    whole = corral.train(Leveled, **small, timesteps=960, output_dir="whole").summary
    rows = read_metrics(Path("whole/metrics.jsonl"))
    levels = [row["info/level"] for row in rows]
    assert levels[0] == levels[1] == 1 and 1 < levels[3] < 5 and levels[-1] == 5, "from the next episodes on"
    assert [row["opponents/stage"] for row in rows] == [0] * 3 + [1] * 7
    assert not any(name.startswith("opponents/rating") for name in rows[-1])
    easy, hard = whole.stages
    assert (easy["played"], easy["steps"], easy["reward"]) == ("with level=1", 288, 15) and hard["reward"] == 75
    for i, place in enumerate(PLACES[1:]):
        corral.train(Leveled, **small, timesteps=288 + 96 * i, output_dir=f"run{i}", **place)
        again = corral.resume(f"run{i}", env=Leveled, timesteps=960, quiet=True, **PLACES[i]).summary
        assert (again.weights_sha256, again.stages) == (whole.weights_sha256, whole.stages)
    assert read_metrics(Path("whole/phases/easy/metrics.jsonl"))[-1]["time/total_timesteps"] == 288


def test_evaluation_plays_the_last_of_stages_with_options():
    small = {key: value for key, value in SMALL.items() if key not in ("opponent", "pool_size", "snapshot_freq")}
    result = corral.train(Leveled, **{**small, "eval_freq": 128}, stages=LEVELS, timesteps=256, output_dir="run")
    assert result.summary.eval_reward == result.summary.best_eval_reward == 75


def test_a_fault_in_a_stage_with_options_can_be_seen_again():
    stages = [{"name": "a", "options": {"level": 1}, "timesteps": 8}, {"name": "b", "options": {"level": 3}}]
    how = {"n_envs": 1, "n_steps": 8, "batch_size": 8, "timesteps": 16, "backend": "serial", "quiet": True}
    with pytest.raises(EnvFault, match="level 3"):
        corral.train(Cursed, stages=stages, output_dir="run", **how)
    assert {json.loads(fault.read_text())["options"]["level"] for fault in Path("run/faults").iterdir()} == {3}


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        ([{"name": "a"}], "either an opponent or options"),
        ([{"name": "a", "opponent": "x", "options": {"b": 1}}], "either an opponent or options"),
        ([{"name": "a", "opponent": "x", "timesteps": 5}, {"name": "b", "options": {"b": 1}}], "either all have"),
        ([{"name": "a", "options": {"b": {1, 2}}}], "a config holds numbers"),
        ([{"name": "a", "optoins": {"b": 1}, "opponent": "x"}], "optoins of stage 0.*extra inputs"),
        ([{"name": "current", "options": {"b": 1}}], "give it another name"),
    ],
)
def test_stages_that_say_nothing_or_two_things_are_refused(stages, complaint):
    with pytest.raises(UsageError, match=complaint):
        parse_config({"env": "x", "stages": stages})
