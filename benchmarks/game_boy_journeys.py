"""Where a policy goes in Stray Bell, beside random buttons: a picture of the world with every way that was taken.

    python benchmarks/game_boy_journeys.py runs/game-boy-... --episodes 50

Prints markdown: rewards, rooms and what else was reached, with 95% intervals. The picture shows each room as it looked
when somebody was first there; a room that nobody entered stays dark.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import corral

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOM = 0xC003
"""The number of the room, then the hero's x and y in it."""
BAR, HEIGHT, WIDTH, OUTDOORS, ROOMS, GAP = 16, 128, 160, 16, 20, 8
"""Pixels of the status bar, of a room; rooms outdoors, four to a row, and in all; pixels between them and the cave."""
DRAWN = 4
"""Steps after which a room is drawn whole."""
GOALS = ("talk", "key", "dungeon", "chest")


@dataclass
class Journeys:
    """What some episodes were like."""

    rewards: list[float] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    coins: list[int] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    entered: Counter[int] = field(default_factory=Counter)
    trails: dict[int, list[tuple[float, float]]] = field(default_factory=dict)


def travel(env: Any, choose: Callable[[Any], int], episodes: int, seed: int, looks: dict[int, Any]) -> Journeys:
    """Play some episodes; what rooms look like is added to ``looks``."""
    journeys = Journeys()
    memory = env._emulator.memory
    for episode in range(episodes):
        observation, info = env.reset(seed=seed + episode)
        total, over, entered, before, stayed = 0.0, False, set(), -1, 0
        while not over:
            room, x, y = memory[ROOM : ROOM + 3]
            stayed, before = (stayed + 1 if room == before else 0), room
            if stayed == DRAWN and room not in looks:
                looks[room] = env.render()[BAR:].copy()
            entered.add(room)
            journeys.trails.setdefault(room, []).append((x + 8, y + 12))
            observation, reward, terminated, truncated, info = env.step(choose(observation))
            total, over = total + reward, terminated or truncated
        journeys.rewards.append(total)
        journeys.rooms.append(len(entered))
        journeys.coins.append(info["coins"])
        journeys.entered.update(entered)
        journeys.reached.update(goal for goal in GOALS if info[f"reward_{goal}"] > 0)
    return journeys


def draw(axes: Any, journeys: Journeys, looks: dict[int, Any], episodes: int) -> None:
    """The world, outdoors above and the dungeon below, and all trails on it."""
    world = np.full((5 * HEIGHT + GAP, 4 * WIDTH, 3), 24, np.uint8)
    spots = []
    for room in range(ROOMS):
        top = room // 4 * HEIGHT + (GAP if room >= OUTDOORS else 0)
        left = room % 4 * WIDTH
        if room in looks:
            lit = 1.0 if journeys.entered[room] else 0.35
            world[top : top + HEIGHT, left : left + WIDTH] = looks[room] * lit
        spots += [(left + x, top + y) for x, y in journeys.trails.get(room, [])]
        share = journeys.entered[room] / episodes
        if share:
            axes.text(
                left + 5, top + 16, f"{share:.0%}", color="white", fontsize=8, weight="bold", backgroundcolor="0.1"
            )
    axes.imshow(world)
    axes.scatter(*np.array(spots).T, s=3, color="#e4572e", alpha=0.15, linewidths=0)
    for edge in range(5):
        axes.axvline(edge * WIDTH, color="black", lw=0.6)
        axes.axhline(edge * HEIGHT, color="black", lw=0.6)
    axes.set_xlim(0, 4 * WIDTH)
    axes.set_ylim(5 * HEIGHT + GAP, 0)
    axes.set_axis_off()


def format_mean(values: list[float] | list[int]) -> str:
    """Mean and 95% interval."""
    return f"{np.mean(values):.2f} ± {1.96 * np.std(values, ddof=1) / len(values) ** 0.5:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run directory of game-boy, trained on ram")
    parser.add_argument("--checkpoint", default="latest")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("game_boy.png"))
    options = parser.parse_args()
    env = corral.make_env("game-boy", render_mode="rgb_array")
    model = corral.load(options.run, checkpoint=options.checkpoint)
    draws = np.random.default_rng(options.seed)
    players = {
        "random buttons": lambda seen: int(draws.integers(env.action_space.n)),
        f"after {model.timesteps:,} steps": lambda seen: int(model.predict(seen, deterministic=False)[0]),
    }
    looks: dict[int, Any] = {}
    results = {player: travel(env, choose, options.episodes, options.seed, looks) for player, choose in players.items()}
    print(f"| {options.episodes} episodes | reward | rooms | coins | {' | '.join(GOALS)} |")
    print("|---" * (4 + len(GOALS)) + "|")
    for player, journeys in results.items():
        goals = " | ".join(f"{journeys.reached[goal] / options.episodes:.0%}" for goal in GOALS)
        means = " | ".join(format_mean(values) for values in (journeys.rewards, journeys.rooms, journeys.coins))
        print(f"| {player} | {means} | {goals} |")
    figure, both = plt.subplots(1, 2, figsize=(13, 7), layout="constrained")
    for axes, (player, journeys) in zip(both, results.items(), strict=True):
        draw(axes, journeys, looks, options.episodes)
        axes.set_title(
            f"{player}: {np.mean(journeys.rooms):.1f} rooms, reward {np.mean(journeys.rewards):.1f}", fontsize=13
        )
    figure.suptitle(f"{options.episodes} episodes each; the share of them that entered a room is in its corner")
    figure.savefig(options.output, dpi=100)
    print(f"\nsaved to {options.output}")


if __name__ == "__main__":
    main()
