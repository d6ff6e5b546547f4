"""Small envs for tests. Each has one feature or one fault."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counter(gym.Env):
    """Counts its steps. An observation is (a number drawn at reset, the step). Ends after ``length`` steps."""

    def __init__(self, length: int = 5, truncate: bool = False) -> None:
        self.length, self.truncate = length, truncate
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.value = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_count, self.draw = 0, float(self.np_random.random())
        return self._observe(), {}

    def step(self, action):
        self.step_count += 1
        end = self.step_count >= self.length
        return self._observe(), float(self.step_count), end and not self.truncate, end and self.truncate, {}

    def _observe(self):
        return np.array([self.draw, self.step_count], np.float32)

    def double(self, number):
        return 2 * number


class Broken(Counter):
    """Raises, kills its process or returns invalid data at step ``at`` of an episode (0: in reset)."""

    def __init__(self, how: str, at: int = 3, length: int = 10) -> None:
        super().__init__(length)
        self.how, self.at = how, at
        if how == "constructor":
            raise RuntimeError("no rom found")

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        if self.at == 0:
            return self._go_wrong((observation, info))
        return observation, info

    def step(self, action):
        outcome = super().step(action)
        return self._go_wrong(outcome) if self.step_count == self.at else outcome

    def _go_wrong(self, outcome: tuple[Any, ...]):
        observation, *rest = outcome
        match self.how:
            case "raise":
                raise ValueError("the dragon won")
            case "unpicklable":

                class Local(Exception):
                    def __reduce__(self):
                        raise TypeError("never")

                raise Local("cannot travel")
            case "sys_exit":
                raise SystemExit(3)
            case "os_exit":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "nan":
                return (observation * np.nan, *rest)
            case "inf_reward":
                return (observation, np.inf, *rest[1:])
            case "huge_reward":
                return (observation, 1e39, *rest[1:])
            case "flags":
                return (observation, rest[0], np.zeros(2, bool), *rest[2:])
            case "none_reward":
                return (observation, None, *rest[1:])
            case "shape":
                return (observation.reshape(2, 1), *rest)
            case "long":
                return (np.zeros(3, np.float32), *rest)
            case "four":
                return outcome[:4]
            case "text":
                return ("hello", *rest)
            case "info":
                return (*outcome[:-1], None)
            case "float64":
                return (observation.astype(np.float64), *rest)
        raise AssertionError(self.how)


class Mutating(Counter):
    """Returns the same observation array at every step and overwrites it in the next step."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer = np.zeros(2, np.float32)
        return self.buffer, {}

    def step(self, action):
        self.buffer[:] = 1000 + self.buffer  # overwrites the observation that was returned last
        self.buffer[:] = (0, super().step(action)[1])
        return self.buffer, 0.0, self.step_count >= self.length, False, {}


class Masked(gym.Env):
    """Allows one action at a time, whose number is the observation. Masks come by method or in the info.

    ``wrong`` says how the mask after the third step is invalid.
    """

    def __init__(self, by: str = "method", wrong: str = "", n: int = 4) -> None:
        self.observation_space = spaces.Discrete(n)
        self.action_space = spaces.Discrete(n)
        self.by, self.wrong, self.n = by, wrong, n
        if by == "method":
            self.action_masks = self._masks

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.at = 0, int(self.np_random.integers(self.n))
        return self.at, self._info()

    def step(self, action):
        assert action == self.at, f"{action} was masked"
        self.count += 1
        self.at = int(self.np_random.integers(self.n))
        return self.at, 1.0, self.count >= 10, False, self._info()

    def _info(self):
        if self.by != "info" or (self.wrong == "missing" and self.count == 3):
            return {}
        return {"action_mask": self._masks()}

    def _masks(self):
        mask = np.zeros(self.n, np.int8 if self.by == "info" else np.bool_)
        mask[self.at] = 1
        if self.count == 3:
            match self.wrong:
                case "empty":
                    mask[:] = 0
                case "float":
                    return mask.astype(np.float32)
                case "length":
                    return mask[:-1]
                case "two":
                    return mask * 2
        return mask


class ByteDigits(gym.Env):
    """Shows digits from 0 to 3 as a flat vector of bytes with bounds 0 and 255, and rewards the action that is the first."""

    def __init__(self, dtype: Any = np.uint8, high: int = 255) -> None:
        self.observation_space = spaces.Box(0, high, (6,), dtype)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._draw_digits(), {}

    def step(self, action):
        reward = float(action == self.digits[0])
        self.count += 1
        return self._draw_digits(), reward, False, self.count >= 20, {}

    def _draw_digits(self):
        self.digits = self.np_random.integers(0, 4, 6).astype(self.observation_space.dtype)
        return self.digits.copy()


class Spaces(gym.Env):
    """Returns random observations of a given space and checks that actions are in their space."""

    def __init__(self, observation: spaces.Space, action: spaces.Space, length: int = 7) -> None:
        self.observation_space, self.action_space, self.length = deepcopy(observation), deepcopy(action), length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {"start": True}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        done = self.count >= self.length
        return self.observation_space.sample(), 1.0, False, done, {"count": self.count, "note": "text"}


class IntsOnly(gym.Env):
    """Accepts only Python integers as ``Discrete`` actions, and returns rewards and flags as arrays of shape ()."""

    def __init__(self, action: spaces.Space | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(3, start=1) if action is None else action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action):
        number = action["a"][0] if isinstance(action, dict) else action
        if type(number) is not int:
            raise TypeError(f"{type(number).__name__} {number}")
        {1: "left", 2: "stay", 3: "right"}[json.loads(json.dumps(number))]
        self.count += 1
        return self._observe(), np.array(1.0), np.array(self.count >= 9), np.array(False), {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def action_masks(self):
        assert self.count < 9, "the episode is over"
        return np.ones(3, np.bool_)


class Reporter(Counter):
    """Returns a number, a text and a flag in its infos."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"height": 2.0 * self.step_count, "name": "x", "odd": True}


class Stateful(Counter):
    """Has ``get_state`` and ``set_state``. Steps take 10 ms, and each draws a random number."""

    replayed = 0

    def step(self, action):
        time.sleep(0.01)
        outcome = super().step(action)
        self.draw = float(self.np_random.random())
        return self._observe(), *outcome[1:4], {"replayed": float(self.replayed)}

    def get_state(self):
        return json.dumps([self.step_count, self.draw, self.np_random.bit_generator.state]).encode()

    def set_state(self, state):
        self.step_count, self.draw, self.np_random.bit_generator.state = json.loads(state)
        self.replayed = 0


class Forgetful(Counter):
    """Ignores its seed, so that the same seed gives different episodes."""

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.draw = float(np.random.default_rng().random())
        return self._observe(), info


class Hoarder(Counter):
    """Counts its episodes, so that an episode depends on those before it."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.episodes += 1
        self.draw = float(self.episodes)
        return self._observe(), info


class Parent(Counter):
    """Starts three processes and never ends them: a forked child, a subprocess, and a subprocess in its own session."""

    def __init__(self, daemon: bool = False) -> None:
        super().__init__()
        fork = multiprocessing.get_context("fork")
        helper = fork.Process(target=time.sleep, args=(60,), daemon=daemon)
        helper.start()
        emulator = subprocess.Popen(["sleep", "60"])
        detached = subprocess.Popen(["sleep", "60"], start_new_session=True)
        self.running = helper, emulator, detached
        self.pids = [process.pid for process in self.running]


class Modules(Counter):
    """Says in its info whether torch is imported in its process."""

    def step(self, action):
        *outcome, info = super().step(action)
        return *outcome, {**info, "torch": float("torch" in sys.modules)}


class Slow(Counter):
    """Takes 4 ms for a step, so that a test can kill its worker in the middle of a rollout."""

    def step(self, action):
        time.sleep(0.004)
        return super().step(action)


class Deadly(Slow):
    """Ends its process at the second step of every episode whose seed is a multiple of 5."""

    def reset(self, *, seed=None, options=None):
        self.exits = seed is not None and seed % 5 == 0
        return super().reset(seed=seed)

    def step(self, action):
        outcome = super().step(action)
        if self.exits and self.step_count == 2:
            os._exit(7)
        return outcome


class Unlike(Slow):
    """Shows the time, so that no observation can be reproduced."""

    def _observe(self):
        return np.array([time.perf_counter() % 1, self.step_count], np.float32)


class Leaking(Counter):
    """Leaks 16 MB in every episode. Steps take 20 ms, because workers check their memory once a second."""

    leaked: ClassVar = []

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        self.leaked.append(np.ones(2_000_000))
        return super().reset(seed=seed)


class OnceBroken(Counter):
    """Raises once among all its copies: only the copy that creates the file ``marker`` raises (None: no copy does)."""

    def __init__(self, where: str, marker: Any) -> None:
        super().__init__(6)
        self.where, self.marker = where, marker

    def _raise_once(self, where: str, is_due: bool) -> None:
        if where == self.where and is_due and self.marker is not None:
            with contextlib.suppress(FileExistsError):
                self.marker.touch(exist_ok=False)
                raise ValueError("the dragon won")

    def reset(self, *, seed=None, options=None):
        self.is_first_reset = not hasattr(self, "is_first_reset")
        self._raise_once("reset", not self.is_first_reset)
        return super().reset(seed=seed)

    def step(self, action):
        outcome = super().step(action)
        self._raise_once("step", self.step_count == 4)
        return outcome

    def action_masks(self):
        self._raise_once("masks", self.step_count == 4)
        return np.ones(2, np.bool_)


class Picky(Counter):
    """Raises in every episode whose seed is a multiple of ``every``, always in reset or always at the second step."""

    def __init__(self, where: str, every: int = 5) -> None:
        super().__init__(6)
        self.where, self.every = where, every

    def _raise_in_some_episodes(self) -> None:
        if self.seed % self.every == 0:
            raise ValueError("not this one")

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        if self.where == "reset":
            self._raise_in_some_episodes()
        return super().reset(seed=seed)

    def step(self, action):
        outcome = super().step(action)
        if self.where == "step" and self.step_count == 2:
            self._raise_in_some_episodes()
        return outcome


class HighCard(gym.Env):
    """A card game for two sides. Both play a card at the same time; the higher card wins the round, most rounds the game.

    Opponents: ``random``, and ``miser``, which always plays its lowest card.
    """

    opponents = ("random", "miser")

    def __init__(self, rounds: int = 5, opponent: str = "random", cards: int = 8) -> None:
        self.rounds, self.default, self.cards = rounds, opponent, cards
        self.observation_space = spaces.Box(0.0, 1.0, (2 * cards + 2,), np.float32)
        self.action_space = spaces.Discrete(cards)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        options = options or {}
        self.opponent = options.get("opponent", self.default)
        if isinstance(self.opponent, str) and self.opponent not in self.opponents:
            raise ValueError(f"unknown opponent {self.opponent!r}")
        self.seat = options.get("seat", int(self.np_random.integers(2)))
        deal = [self.np_random.permutation(self.cards)[: self.rounds + 1] for _ in range(2)]
        self.hands = [np.isin(np.arange(self.cards), cards) for cards in deal]
        self.played = [np.zeros(self.cards, np.bool_), np.zeros(self.cards, np.bool_)]
        self.score = [0, 0]
        return self._observe(0), {}

    def step(self, action):
        if not self.hands[0][action]:
            raise ValueError(f"card {action} is not in the hand; it was masked")
        opponent_card = self._opponent_card()
        for side, card in enumerate((action, opponent_card)):
            self.hands[side][card], self.played[side][card] = False, True
        if action != opponent_card:
            self.score[0 if action > opponent_card else 1] += 1
        elif self.seat == 0:
            self.score[0] += 1  # the side in seat 0 wins ties
        else:
            self.score[1] += 1
        over = int(self.played[0].sum()) == self.rounds
        reward = float(np.sign(self.score[0] - self.score[1])) if over else 0.0
        return self._observe(0), reward, over, False, {}

    def action_masks(self):
        return self.hands[0].copy()

    def advise(self, name):
        return self._pick_card(name, np.flatnonzero(self.hands[0]))

    def _opponent_card(self):
        if isinstance(self.opponent, str):
            return self._pick_card(self.opponent, np.flatnonzero(self.hands[1]))
        return int(self.opponent(self._observe(1), self.hands[1].copy(), self.np_random))

    def _pick_card(self, name, held):
        return int(self.np_random.choice(held) if name == "random" else held[0])

    def _observe(self, side):
        score = np.array([self.score[side], self.score[1 - side]]) / self.rounds
        return np.concatenate([self.hands[side], self.played[1 - side], score]).astype(np.float32)


class HighCardWithState(HighCard):
    """``HighCard`` with ``get_state`` and ``set_state``."""

    def get_state(self):
        position = {name: np.array(getattr(self, name)).astype(int).tolist() for name in ("hands", "played", "score")}
        return json.dumps([position, self.np_random.bit_generator.state]).encode()

    def set_state(self, state):
        position, generator = json.loads(state)
        self.hands, self.played = ([np.array(row, bool) for row in position[name]] for name in ("hands", "played"))
        self.score = position["score"]
        self.np_random.bit_generator.state = generator


class MortalHighCard(HighCard):
    """``HighCard`` that kills its process in the middle of some games, once for each such deal."""

    def __init__(self, directory: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.directory = directory

    def step(self, action):
        outcome = super().step(action)
        deal = int("".join(str(int(card)) for side in self.hands for card in side), 2)
        if deal % 37 == 0:
            with contextlib.suppress(FileExistsError), Path(self.directory, str(deal)).open("x"):
                os.kill(os.getpid(), signal.SIGKILL)
        return outcome


class Shuffled(gym.Env):
    """One legal action is right. Its index is random: it is known only from the action features and the observation."""

    def __init__(
        self, n: int = 12, most: int = 5, dtype: Any = np.float16, masked: bool = True, length: int = 10
    ) -> None:
        self.n, self.most, self.length = n, most, length
        self.observation_space = spaces.Dict(
            action_features=spaces.Box(-2, 2, (n, 4), dtype), observation=spaces.Box(-2, 2, (2,), np.float32)
        )
        self.action_space = spaces.Discrete(n)
        if masked:
            self.action_masks = lambda: self.mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._deal(), {}

    def step(self, action):
        reward = float(action == self.right)
        self.count += 1
        return self._deal(), reward, self.count >= self.length, False, {}

    def _deal(self):
        rng = self.np_random
        legal = rng.permutation(self.n)[: rng.integers(2, self.most + 1)]
        wants_largest = int(rng.integers(2))  # the right action has the largest (1) or the smallest (0) second feature
        features = np.zeros(
            self.observation_space["action_features"].shape, self.observation_space["action_features"].dtype
        )
        features[legal] = rng.uniform(-1, 1, (len(legal), 4))
        numbers = features[legal, 1]
        self.right = int(legal[numbers.argmax() if wants_largest else numbers.argmin()])
        self.mask = np.zeros(self.n, np.bool_)
        self.mask[legal] = True
        return {
            "action_features": features,
            "observation": np.array([wants_largest, rng.normal()], np.float32).clip(-2, 2),
        }


class Leveled(Counter):
    """Declares the stages of a curriculum. Reset options set the level, which scales rewards and is in the infos."""

    curriculum = (
        {"name": "easy", "options": {"level": 1}, "timesteps": 1000},
        {"name": "hard", "options": {"level": 5}, "timesteps": 3000},
    )

    def __init__(self, level=2, **kwargs):
        super().__init__(**kwargs)
        self.level = self._made = level

    def reset(self, *, seed=None, options=None):
        self.level = (options or {}).get("level", self._made)
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward * self.level, terminated, truncated, info | {"level": self.level}


class Cursed(Leveled):
    """Raises in every step at level 3."""

    def step(self, action):
        if self.level == 3:
            raise ValueError("level 3 cannot be played")
        return super().step(action)


class BrightSquare(gym.Env):
    """Rewards walking to a goal. The image shows the walker in one channel and the goal in the other."""

    def __init__(self, side=16, cell=2, channels_first=True, vector=False):
        self.side, self.cell, self.cells = side, cell, side // cell
        self.channels_first, self.vector = channels_first, vector
        shape = (2, side, side) if channels_first else (side, side, 2)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        if vector:
            self.observation_space = spaces.Dict(map=self.observation_space, time=spaces.Box(0, 1, (1,), np.float32))
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.walker, self.goal = self.np_random.integers(0, self.cells, (2, 2))
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        moves = ((-1, 0), (1, 0), (0, -1), (0, 1))
        self.walker = np.clip(self.walker + moves[int(action)], 0, self.cells - 1)
        self.steps += 1
        at_goal = bool((self.walker == self.goal).all())
        return self._observation(), 1.0 if at_goal else -0.02, at_goal, self.steps >= 40, {}

    def _observation(self):
        image = np.zeros((2, self.side, self.side), np.uint8)
        for channel, (y, x) in zip(image, (self.walker * self.cell, self.goal * self.cell), strict=True):
            channel[y : y + self.cell, x : x + self.cell] = 255
        image = image if self.channels_first else np.ascontiguousarray(image.transpose(1, 2, 0))
        return {"map": image, "time": np.float32([self.steps / 40])} if self.vector else image


class Film(gym.Env):
    """Stacks the last frames of random images and vectors. The reward depends on the oldest frame.

    ``declare`` says whether it declares its frame stacks; ``flaw`` says how the stacks differ from what it declares.
    """

    def __init__(self, frames=3, declare=True, flaw=None, length=7):
        self.frames, self.flaw, self.length = frames, flaw, length
        if declare:
            self.frame_stacks = {"map": frames, "global": frames}
        self.observation_space = spaces.Dict(
            {
                "map": spaces.Box(0, 255, (2 * frames, 8, 8), np.uint8),
                "global": spaces.Box(-np.inf, np.inf, (3 * frames,), np.float32),
                "plain": spaces.Box(-np.inf, np.inf, (2,), np.float32),
                "choice": spaces.Discrete(3),
            }
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.ends = int(self.np_random.integers(1, self.length + 1))
        first_frame = self._frame()
        blank_frame = {key: np.zeros_like(value) for key, value in first_frame.items()}
        self.seen = [*([blank_frame if self.flaw == "zeros" else first_frame] * (self.frames - 1)), first_frame]
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.seen = [*self.seen[1:], self._frame()]
        if self.flaw == "refilled" and self.steps == 12:
            self.seen = [self.seen[-1]] * self.frames
        ended = self.steps >= self.ends
        reward = float(self.seen[0]["global"][0]) * (1 if action else -1)
        return self._observation(), reward, ended and self.ends % 2 == 0, ended and self.ends % 2 == 1, {}

    def _frame(self):
        return {
            "map": self.np_random.integers(0, 256, (2, 8, 8), np.uint8),
            "global": self.np_random.standard_normal(3).astype(np.float32),
        }

    def _observation(self):
        frames = self.seen[::-1] if self.flaw == "newest first" else self.seen
        stacked = {key: np.concatenate([frame[key] for frame in frames]) for key in ("map", "global")}
        plain = np.float32([self.steps, self.ends])
        return {**stacked, "plain": plain, "choice": np.int64(self.steps % 3)}


class Coins(Counter):
    """Rewards one of its two actions; observations do not say which."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action), terminated, truncated, info
