"""Train PPO on any env, by steps or by episodes, with the flags that scripts of this name usually have.

    python examples/train_ppo.py --n-envs 8 --timesteps 100000 --eval
    python examples/train_ppo.py --n-envs 4 --num-episodes 300 --parallel-start-method spawn

It is a thin layer over ``corral.train``; ``corral train ENV --help`` shows every setting there is.
"""

from __future__ import annotations

import argparse
import sys

import corral


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="card-battle", help="any name that `corral train` takes [card-battle]")
    parser.add_argument("--n-envs", type=int, default=8, help="envs side by side [8]")
    parser.add_argument("--parallel-start-method", choices=("auto", "spawn", "forkserver", "fork"), default="auto")
    parser.add_argument("--timesteps", type=int, help="stop after this many steps [the env's, or 100000]")
    parser.add_argument("--num-episodes", type=int, help="stop after this many episodes")
    parser.add_argument("--opponent", help="for games that have opponents")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps or auto")
    parser.add_argument("--learning-rate", type=float, help="step size of Adam [the env's, or 3e-4]")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--eval", action="store_true", help="evaluate the final policy")
    parser.add_argument("--eval-games", type=int, default=100, help="episodes of that evaluation [100]")
    for flag in ("--save-path", "--checkpoint-dir", "--log-path"):
        parser.add_argument(flag, help="the run directory, which holds checkpoints and logs")
    return parser.parse_args()


def show(state: corral.TrainingState, total: int | None, n_envs: int) -> None:
    """The lines that a user of episode-based scripts looks for."""
    m = state.metrics
    of_total = f"/{total}" if total else ""
    print(f"Episode {state.episodes}{of_total}  step {state.timesteps}")
    if "rollout/ep_rew_mean" in m:
        reward, length = m["rollout/ep_rew_mean"], m["rollout/ep_len_mean"]
        print(f"  Mean(100): {reward:9.2f}  |  Length: {length:6.0f}  |  FPS: {m['time/fps']:,.0f}")
    print(f"  n_completed_episodes: {m['rollout/episodes_in_rollout']:.0f}  |  n_envs: {n_envs}")


def main() -> int:
    options = parse()
    directories = {options.save_path, options.checkpoint_dir, options.log_path} - {None}
    if len(directories) > 1:
        print(f"a run has one directory, but {len(directories)} were named: {sorted(directories)}", file=sys.stderr)
        return 2
    settings = {name: getattr(options, name) for name in ("num_episodes", "timesteps", "learning_rate", "opponent")}
    print(f"Using {options.n_envs} parallel environments for training (start method: {options.parallel_start_method})")
    try:
        result = corral.train(
            options.env,
            callback=lambda state: show(state, options.num_episodes, options.n_envs),
            quiet=True,
            n_envs=options.n_envs,
            parallel_start_method=options.parallel_start_method,
            device=options.device,
            seed=options.seed,
            output_dir=next(iter(directories), None),
            eval_freq=10**12 if options.eval else 0,
            eval_episodes=options.eval_games,
            **{name: value for name, value in settings.items() if value is not None},
        )
    except corral.CorralError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    summary = result.summary
    print(f"\n{summary.steps:,} steps, {summary.episodes:,} episodes, {summary.fps:,.0f} FPS (learning included)")
    if options.eval:
        print(f"evaluation over {options.eval_games} games: mean reward {summary.eval_reward:.2f}")
    print(f"results in {result.run_dir}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
