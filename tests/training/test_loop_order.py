"""The order of events in a run: the loop with its hooks must do the same as one function that states the whole order.

Both train the same fakes (see ``loop_scenarios``) and must log the same events. ``-m deep`` compares them in every
scenario. Deliberate mistakes in the order, made one at a time, prove that the comparison would detect them.
"""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from corral.core.errors import DeadlinePassed
from corral.core.schedules import is_due
from corral.ppo.learner import UpdateSettings
from corral.ppo.loss_terms import loss_terms_at
from corral.reporting.episode_lines import episode_lines, epoch_line, update_line
from corral.training.evaluate import EpisodePlan, evaluate_run
from corral.training.hooks.episode_log import EpisodeLog
from corral.training.hooks.hook import HookList
from corral.training.hooks.hook_order import order_hooks
from corral.training.loop import train_loop
from corral.training.metrics_row import metrics_row, progress_row
from corral.training.pipeline import RolloutPipeline
from corral.training.progress import Stopwatch, budgets_of, exhausted_budget, learning_rate, seconds_left
from corral.training.run import Run, capture
from tests.training import loop_scenarios
from tests.training.loop_scenarios import CLOCK, SIMPLEST_SCENARIO, VALUES, Scenario, SimulatedRun, train_and_log_events

SAMPLE = loop_scenarios.sample_scenarios(150)


@pytest.fixture(autouse=True)
def patch():
    """Install the fakes; further patches of a test are undone together with them."""
    yield from loop_scenarios.install_fakes()


# ---- the order as one function ---------------------------------------------------------------------------------------


def train_inlined(sim: SimulatedRun) -> str:
    """Train with the whole loop written out in one function, without hooks, as the reference for the order.

    It is the loop from before hooks existed, with two deliberate changes: episode lines, epoch lines (with
    ``log_episodes``) and warnings of faults come after the commit, and the user's hook is called before the callback.
    """
    run, signals, hooks, callback = sim.run, sim.signals, sim.hooks, sim.callback
    config, progress, learner, source, console = run.config, run.progress, run.learner, run.source, run.reporter.console
    league, policy = run.opponents, run.learner.policy

    def budget_reached() -> str | None:
        return exhausted_budget(config, progress) or ("stages" if league is not None and league.finished else None)

    def save() -> None:
        loop_scenarios._save_checkpoint(run.directory.checkpoints, run.recovery_point)
        console.note(f"checkpoint at {run.recovery_point.timesteps:,} steps")
        loop_scenarios._prune(run.directory.checkpoints, config.keep_checkpoints)
        run.last_saved_step = run.recovery_point.timesteps

    def prepare_opponents(weights: Any, timesteps: int) -> None:
        if league is not None:
            league.prepare(weights, timesteps, source.opponents())

    def write_stage_files() -> None:
        run.reporter.flush()
        if league is not None:
            path = run.directory.path / "phases" / league.stages[league.last_counted_stage].name
            path.mkdir(parents=True, exist_ok=True)
            loop_scenarios._write_stage_rows(run.directory.metrics_file, path, league.last_counted_stage, ())
            loop_scenarios._save_checkpoint(path / "checkpoints", run.recovery_point)
            loop_scenarios._prune(path / "checkpoints", 1)

    def evaluate_policy() -> dict[str, float]:
        if run.eval_env is None:
            return {}
        started = CLOCK.seconds
        with signals.interruptible():
            loop_scenarios._check_replay(run)
            run.actor.load(policy.state_dict())
            options = None if league is None else league.eval_options
            plan = EpisodePlan(config.eval_episodes, run.seed, config.eval_max_steps, options, sample=False)
            result = loop_scenarios._evaluate_actor(run.eval_env, run.actor, plan)
            report = run.eval_env.take_report()
        progress.fault_counts += report.fault_counts
        run.log_faults(report.faults)
        seconds = CLOCK.seconds - started
        progress.eval_seconds += seconds
        progress.last_eval_reward = result.mean_reward
        is_best = progress.best_reward is None or result.mean_reward > progress.best_reward
        if is_best:
            progress.best_reward = result.mean_reward
        run.recovery_point = capture(run)
        if is_best:
            loop_scenarios._save_checkpoint(run.directory.best, run.recovery_point)
            loop_scenarios._prune(run.directory.best, 1)
        console.note(
            f"evaluation at {progress.timesteps:,} steps: reward {result.mean_reward:,.2f} "
            f"(deviation {result.std_reward:,.2f}, {config.eval_episodes} episodes)"
        )
        measured = {"mean_reward": result.mean_reward, "std_reward": result.std_reward}
        measured |= {"mean_ep_length": result.mean_length, "seconds": seconds}
        return {f"eval/{name}": value for name, value in measured.items()}

    resumed = run.recovery_point is not None
    if not resumed:
        run.recovery_point = capture(run)
        if config.expert is not None:
            with signals.interruptible():
                loop_scenarios.warm_start(run, console)
    for hook in hooks:
        hook.on_start(SimpleNamespace(resumed=resumed))
        run.refresh_recovery_point(hook.name, hook.state_dict())
    if config.kl_ref_coef and learner.reference is None:
        learner.set_reference(policy.state_dict())
    source.publish(policy.state_dict(), progress.iteration)
    run.recovery_point, reason = capture(run), budget_reached()
    if progress.iteration:
        run.last_saved_step = progress.timesteps
    else:
        save()
    rollout_begun, row = False, {}
    mark = CLOCK.seconds - progress.eval_seconds  # end of the last iteration, on a clock that stops in evaluations
    run.stopwatch = Stopwatch(progress)
    deadline = None if config.duration is None else CLOCK.seconds + seconds_left(config.duration, progress)
    try:
        while reason is None:
            with signals.interruptible():
                started = CLOCK.seconds
                if deadline is not None and progress.iteration > 0:
                    source.set_deadline(deadline)
                if not rollout_begun:
                    lagged_weights = run.recovery_point.lagged_weights
                    prepare_opponents(lagged_weights or policy.state_dict(), progress.timesteps)
                    if lagged_weights is not None:
                        source.publish(lagged_weights, progress.iteration - 1)
                    source.begin(progress.iteration)
                    if lagged_weights is not None:
                        source.publish(policy.state_dict(), progress.iteration)
                try:
                    rollout = source.collect()
                except DeadlinePassed:
                    reason = "duration"
            if reason is not None:
                progress.discarded_seconds += CLOCK.seconds - progress.eval_seconds - mark
                run.recovery_point, run.last_saved_step = capture(run), None
                if "eval/mean_reward" not in row and (measured := evaluate_policy()):
                    run.reporter.write(progress_row(run) | measured, budgets_of(config, progress)[0].done)
                write_stage_files()
                break
            steps, end = progress.timesteps, progress.timesteps + config.rollout_size
            with signals.interruptible():
                stage_ended = None if league is None else league.record_games(rollout.episodes, end)
                rollout_begun = config.overlap and not (config.timesteps is not None and end >= config.timesteps)
                if rollout_begun:
                    prepare_opponents(policy.state_dict(), end)
                    source.begin(progress.iteration + 1)
                collected = CLOCK.seconds
                lag = None
                if config.overlap:
                    log_probs, _ = learner.engine.log_probs_and_values(rollout, 1)
                    lag = float(np.minimum(np.exp(log_probs - rollout.log_probs), 1).mean())
                targets = run.estimate_advantages(rollout)
                rate = run.overrides.get("learning_rate", learning_rate(config, end))
                terms = dataclasses.replace(loss_terms_at(config, steps), ent_coef=run.overrides.get("ent_coef"))
                settings = UpdateSettings(progress.iteration, rate, terms)
                before = run.counters()
                update = learner.update(rollout, targets, settings)
            run._merge_observations(rollout)
            progress.advance(rollout, CLOCK.seconds - progress.eval_seconds - mark)
            training = collected - progress.eval_seconds - mark
            mark = CLOCK.seconds - progress.eval_seconds
            source.publish(policy.state_dict(), progress.iteration)
            run.recovery_point, reason = capture(run), budget_reached()

            run.stopwatch.collect_seconds, run.stopwatch.update_seconds = collected - started, CLOCK.seconds - collected
            row = metrics_row(run, rollout, update, settings, lag)
            n_common_metrics = len(row)
            save_due = is_due(config.checkpoint_freq, steps, progress.timesteps)
            if config.log_episodes:
                total, times = config.num_episodes, (before.seconds, before.seconds + training)
                earlier, shape = before.recent_rewards, (rollout.n_steps, rollout.n_envs)
                for line in episode_lines(rollout.episodes, earlier, before.episodes, total, steps, shape, times):
                    console.note(line)
            run.log_faults(rollout.faults)
            if stage_ended is not None:
                console.note(stage_ended)
            if config.log_episodes:
                epochs = (
                    (learner.n_gradient_steps - before.n_gradient_steps) * config.minibatch_size / config.rollout_size
                )
                for epoch in range(1, int(epochs) + 1):
                    console.note(epoch_line(epoch, config.n_epochs))
                console.note(update_line(row, epochs, config.rollout_size, progress.seconds))
            state = CallbackState(run, row, reason)
            try:
                if reason is not None or is_due(config.eval_freq, steps, progress.timesteps):
                    row |= evaluate_policy()
                for hook in hooks:
                    hook.after_iteration(state)
                    run.refresh_recovery_point(hook.name, hook.state_dict())
                if callback is not None:
                    callback(state)
                if state.requested_stop is not None and reason is None:
                    reason = state.requested_stop
                    row |= {} if "eval/mean_reward" in row else evaluate_policy()
            finally:
                save_due = save_due or state.checkpoint_requested
                keep = len(row) > n_common_metrics or stage_ended is not None or reason is not None or save_due
                run.reporter.write(row, budgets_of(config, progress)[0].done, keep)
                if stage_ended is not None or reason is not None:
                    write_stage_files()
            if save_due:
                save()
    finally:
        progress.fault_counts += source.take_fault_counts()
        if run.recovery_point.timesteps != run.last_saved_step:
            save()
        for hook in reversed(hooks):
            hook.on_end(SimpleNamespace())
    return reason


class CallbackState:
    """What hooks and callbacks get: counters, metrics, and methods to log, stop, change settings and save."""

    def __init__(self, run: Run, metrics: dict[str, float], stop_reason: str | None) -> None:
        progress = run.progress
        self.iteration, self.timesteps, self.episodes = progress.iteration, progress.timesteps, progress.episodes
        self.metrics, self.stop_reason, self._run = metrics, stop_reason, run
        self.requested_stop: str | None = None
        self.checkpoint_requested = False

    def log(self, name: str, value: float) -> None:
        self.metrics[name] = float(value)

    def stop(self, reason: str) -> None:
        self.requested_stop = reason

    def set(self, name: str, value: float) -> None:
        self._run.overrides[name] = value

    def save_checkpoint(self) -> None:
        self.checkpoint_requested = True


# ---- the order in the real loop and its hooks ------------------------------------------------------------------------


def train_with_hooks(sim: SimulatedRun, order: Any = order_hooks) -> str:
    """Train with the real loop."""
    return train_loop(sim.run, order(sim.run.config, sim.hooks, sim.callback), sim.signals)


@functools.lru_cache(maxsize=len(SAMPLE))
def expected_events(scenario: Scenario) -> list[str]:
    """The events of the loop that is written out in one function."""
    return train_and_log_events(SimulatedRun(scenario), train_inlined)


def differs_from_reference(scenario: Scenario, order: Any = order_hooks) -> bool:
    """Whether the real loop logs other events than the reference."""
    train = functools.partial(train_with_hooks, order=order)
    return train_and_log_events(SimulatedRun(scenario), train) != expected_events(scenario)


def test_the_sampled_scenarios_contain_all_pairs_of_values():
    assert loop_scenarios.pairs_in(SAMPLE) == loop_scenarios.pairs_in(loop_scenarios.all_scenarios())
    assert [*VALUES] == [*Scenario._fields]


def test_the_loop_with_hooks_logs_the_same_events_as_the_inlined_loop():
    """pytest shows the first scenario that differs, event by event."""
    for scenario in SAMPLE:
        assert train_and_log_events(SimulatedRun(scenario), train_with_hooks) == expected_events(scenario), scenario


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_the_loop_with_hooks_logs_the_same_events_in_every_scenario():
    different = [scenario for scenario in loop_scenarios.all_scenarios() if differs_from_reference(scenario)]
    assert not different, f"{len(different)} scenarios, such as {different[0]}"


# ---- single scenarios ------------------------------------------------------------------------------------------------


def test_update_lines_contain_the_number_of_epochs():
    scenario = SIMPLEST_SCENARIO._replace(log_episodes=True)
    assert train_and_log_events(SimulatedRun(scenario), train_with_hooks) == train_and_log_events(
        SimulatedRun(scenario), train_inlined
    )


def test_the_time_of_a_warm_start_does_not_count_as_training_time():
    scenario = SIMPLEST_SCENARIO._replace(expert=True)
    sims = [SimulatedRun(scenario, warm_start_seconds=7) for _ in range(2)]
    assert train_and_log_events(sims[0], train_with_hooks) == train_and_log_events(sims[1], train_inlined)


def test_on_end_of_an_interrupted_run_gets_no_reason():
    """``End.reason`` is documented to be None if something was raised."""
    sim = SimulatedRun(
        SIMPLEST_SCENARIO._replace(resumed=True, evaluation=True, hook=True, signal="evaluation", budget="duration")
    )
    events = train_and_log_events(sim, train_with_hooks)
    assert "deadline passed: " in events and any(line.startswith("raised: Interrupted") for line in events)
    assert sim.hooks[0].end.reason is None


# ---- deliberate mistakes ---------------------------------------------------------------------------------------------
# Each function patches the loop. With `wrong=True` the order is wrong; with `wrong=False` (the control) it is right.


def reordering(change: Any = lambda parts: None, kind: type[HookList] = HookList) -> Any:
    """Return a variant of ``order_hooks`` that changes the lists of hooks or uses another class of list."""

    def order(*args: Any) -> HookList:
        hooks = order_hooks(*args)
        parts = {name: [*getattr(hooks, f"_{name}")] for name in ("before", "users", "after", "always", "last")}
        change(parts)
        return kind(**parts)

    return order


def rows_only_when_all_hooks_succeed(patch, wrong):
    class SequentialHooks(HookList):
        def after_iteration(self, iteration):
            try:
                for hook in (*self._before, *self._users, *self._after):
                    hook.after_iteration(iteration)
                    if hook in self._users:
                        iteration.run.refresh_recovery_point(hook.name, hook.state_dict())
            except BaseException:
                if not wrong:
                    self._write(iteration)
                raise
            self._write(iteration)
            for hook in self._last:
                hook.after_iteration(iteration)

        def _write(self, iteration):
            for hook in self._always:
                hook.after_iteration(iteration)

    return reordering(kind=SequentialHooks)


def no_recovery_point_after_evaluation(patch, wrong):
    def evaluate(run, signals):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Run, "take_recovery_point", (lambda run: None) if wrong else Run.take_recovery_point)
            return evaluate_run(run, signals)

    patch.setattr("corral.training.iteration.evaluate_run", evaluate)
    patch.setattr("corral.training.loop.evaluate_run", evaluate)
    return order_hooks


def user_hooks_before_evaluation(patch, wrong):
    def change(parts):
        evaluation = parts["before"].pop()
        if wrong:
            parts["after"].insert(0, evaluation)
        else:
            parts["before"].append(evaluation)

    return reordering(change)


def no_final_evaluation(patch, wrong):
    return reordering(lambda parts: parts["after"].clear() if wrong else None)


def checkpoints_before_writers(patch, wrong):
    def change(parts):
        checkpoints = parts["last"].pop()
        parts["after" if wrong else "last"].append(checkpoints)

    return reordering(change)


def loss_terms_from_the_steps_after_the_rollout(patch, wrong):
    original = Run.next_update_settings

    def next_update_settings(run):
        settings, steps = original(run), run.progress.timesteps + wrong * run.config.rollout_size
        adjusted = {name: getattr(settings.terms, name) for name in ("clip_range", "ent_coef")}
        return dataclasses.replace(settings, terms=dataclasses.replace(loss_terms_at(run.config, steps), **adjusted))

    patch.setattr(Run, "next_update_settings", next_update_settings)
    return order_hooks


def episode_log_from_counters_after_the_commit(patch, wrong):
    class LateEpisodeLog(EpisodeLog):
        def after_iteration(self, iteration):
            before = iteration.before
            iteration.before = iteration.run.counters() if wrong else before
            super().after_iteration(iteration)
            iteration.before = before

    patch.setattr("corral.training.hooks.hook_order.EpisodeLog", LateEpisodeLog)
    return order_hooks


def games_recorded_after_the_next_rollout_began(patch, wrong):
    class LatePipeline(RolloutPipeline):
        def next_rollout(self):
            run, source = self._run, self._run.source
            run.stopwatch.start_rollout()
            if self._deadline is not None and run.progress.iteration > 0:
                source.set_deadline(self._deadline)
            if not self._has_begun:
                self._begin_first_rollout()
            try:
                rollout = source.collect()
            except DeadlinePassed:
                return None
            steps = run.progress.timesteps + run.config.rollout_size
            if not wrong:
                self._record_games(rollout, steps)
            self._has_begun = run.config.overlap and not self._is_last()
            if self._has_begun:
                self._choose_opponents(run.learner.policy.state_dict(), steps)
                source.begin(run.progress.iteration + 1)
            if wrong:
                self._record_games(rollout, steps)
            run.stopwatch.end_rollout()
            return rollout

        def _record_games(self, rollout, steps):
            league = self._run.opponents
            self.stage_end_message = None if league is None else league.record_games(rollout.episodes, steps)

    patch.setattr("corral.training.loop.RolloutPipeline", LatePipeline)
    return order_hooks


def no_save_at_the_end(patch, wrong):
    original = Run.save_recovery_point

    def save_recovery_point(run, again=False):
        is_last = run.source.counts_taken  # the loop takes the counts of the source right before its last save
        if not (wrong and is_last):
            original(run, again)

    patch.setattr(Run, "save_recovery_point", save_recovery_point)
    return order_hooks


def warm_start_after_the_first_publish(patch, wrong):
    original, postponed = Run.publish_weights, []

    class LateStart(HookList):
        def on_start(self, start):
            if wrong:
                postponed.append(functools.partial(super().on_start, start))
            else:
                super().on_start(start)

    def publish_weights(run):
        original(run)
        if postponed:
            postponed.pop()()

    patch.setattr(Run, "publish_weights", publish_weights)
    return reordering(kind=LateStart)


MISTAKES = [
    rows_only_when_all_hooks_succeed,
    no_recovery_point_after_evaluation,
    user_hooks_before_evaluation,
    no_final_evaluation,
    checkpoints_before_writers,
    loss_terms_from_the_steps_after_the_rollout,
    episode_log_from_counters_after_the_commit,
    games_recorded_after_the_next_rollout_began,
    no_save_at_the_end,
    warm_start_after_the_first_publish,
]


def count_differences(mistake: Any, wrong: bool, scenarios: list[Scenario], patch: pytest.MonkeyPatch) -> int:
    """Count the scenarios in which the patched loop differs from the reference."""
    for scenario in scenarios:
        expected_events(scenario)  # computed and cached before anything is patched
    order = mistake(patch, wrong)
    return sum(differs_from_reference(scenario, order) for scenario in scenarios)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_the_order_is_detected(mistake, patch):
    assert count_differences(mistake, True, SAMPLE, patch) > 0


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_patches_that_make_mistakes_change_nothing_with_the_right_order(mistake, patch):
    assert count_differences(mistake, False, SAMPLE, patch) == 0
