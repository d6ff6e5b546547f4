"""Small envs for tests: each does one thing, or one thing wrong."""

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
    """Counts its steps; the observation says (env seed's draw, step). Ends after ``length`` steps."""

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
    """Does something wrong at step ``at`` of an episode (0: in reset)."""

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
    """Returns the same array again and again, and changes it after returning it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer = np.zeros(2, np.float32)
        return self.buffer, {}

    def step(self, action):
        self.buffer[:] = 1000 + self.buffer  # spoils what was returned last
        self.buffer[:] = (0, super().step(action)[1])
        return self.buffer, 0.0, self.step_count >= self.length, False, {}


class Masked(gym.Env):
    """One action is allowed at a time: the one the observation names. Masks come by method or by info."""

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
    """Shows digits from 0 to 3 as a flat vector of bytes, whose bounds are 0 and 255; reward for naming the first."""

    def __init__(self, dtype: Any = np.uint8, high: int = 255) -> None:
        self.observation_space = spaces.Box(0, high, (6,), dtype)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._show(), {}

    def step(self, action):
        reward = float(action == self.shown[0])
        self.count += 1
        return self._show(), reward, False, self.count >= 20, {}

    def _show(self):
        self.shown = self.np_random.integers(0, 4, 6).astype(self.observation_space.dtype)
        return self.shown.copy()


class Spaces(gym.Env):
    """Random observations of any space; checks every action."""

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
    """Takes Python's own integers for ``Discrete`` actions, and returns its numbers as arrays without axes."""

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
    """Reports numbers in its infos."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"height": 2.0 * self.step_count, "name": "x", "odd": True}


class Stateful(Counter):
    """Can say where it is; reports how many of its steps were a repetition of steps that another copy took."""

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
    """Ignores its seed."""

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.draw = float(np.random.default_rng().random())
        return self._observe(), info


class Hoarder(Counter):
    """Carries something from one episode to the next."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.episodes += 1
        self.draw = float(self.episodes)
        return self._observe(), info


class Parent(Counter):
    """Starts processes and never ends them: an emulator, a helper, and a daemon that leaves its group."""

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
    """Says in its info whether torch is there."""

    def step(self, action):
        *outcome, info = super().step(action)
        return *outcome, {**info, "torch": float("torch" in sys.modules)}


class Slow(Counter):
    """Slow enough to be killed in mid-rollout."""

    def step(self, action):
        time.sleep(0.004)
        return super().step(action)


class Deadly(Slow):
    """Ends its process whenever the third episode of an env comes to its second step."""

    episodes = -1

    def reset(self, *, seed=None, options=None):
        self.dies = seed is not None and seed % 5 == 0
        return super().reset(seed=seed)

    def step(self, action):
        outcome = super().step(action)
        if self.dies and self.step_count == 2:
            os._exit(7)
        return outcome


class Unlike(Slow):
    """Never shows the same twice."""

    def _observe(self):
        return np.array([time.perf_counter() % 1, self.step_count], np.float32)


class Leaking(Counter):
    """Grows by some megabytes with every episode; a look at memory is taken once a second."""

    hoard: ClassVar = []

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        self.hoard.append(np.ones(2_000_000))
        return super().reset(seed=seed)


class OnceBroken(Counter):
    """Raises once in its life, or rather in that of all its copies: not if the file exists, which it makes."""

    def __init__(self, where: str, done: Any) -> None:
        super().__init__(6)
        self.where, self.done = where, done

    def _maybe(self, where: str, now: bool) -> None:
        if where == self.where and now and self.done is not None:
            with contextlib.suppress(FileExistsError):
                self.done.touch(exist_ok=False)
                raise ValueError("the dragon won")

    def reset(self, *, seed=None, options=None):
        self.fresh = not hasattr(self, "fresh")
        self._maybe("reset", not self.fresh)
        return super().reset(seed=seed)

    def step(self, action):
        outcome = super().step(action)
        self._maybe("step", self.step_count == 4)
        return outcome

    def action_masks(self):
        self._maybe("masks", self.step_count == 4)
        return np.ones(2, np.bool_)


class Picky(Counter):
    """Raises in some seeded episodes, at the same step each time."""

    def __init__(self, where: str, every: int = 5) -> None:
        super().__init__(6)
        self.where, self.every = where, every

    def _maybe(self) -> None:
        if self.seed % self.every == 0:
            raise ValueError("not this one")

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        if self.where == "reset":
            self._maybe()
        return super().reset(seed=seed)

    def step(self, action):
        outcome = super().step(action)
        if self.where == "step" and self.step_count == 2:
            self._maybe()
        return outcome


class HighCard(gym.Env):
    """Both sides play one of their cards in turn, unseen; the higher wins the round, most rounds the game.

    Opponents: ``random``, and ``miser``, who always plays the lowest card that is left.
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
        theirs = self._theirs()
        for side, card in enumerate((action, theirs)):
            self.hands[side][card], self.played[side][card] = False, True
        if action != theirs:
            self.score[0 if action > theirs else 1] += 1
        elif self.seat == 0:
            self.score[0] += 1  # who begins wins ties
        else:
            self.score[1] += 1
        over = int(self.played[0].sum()) == self.rounds
        reward = float(np.sign(self.score[0] - self.score[1])) if over else 0.0
        return self._observe(0), reward, over, False, {}

    def action_masks(self):
        return self.hands[0].copy()

    def advise(self, name):
        return self._choice(name, np.flatnonzero(self.hands[0]))

    def _theirs(self):
        if isinstance(self.opponent, str):
            return self._choice(self.opponent, np.flatnonzero(self.hands[1]))
        return int(self.opponent(self._observe(1), self.hands[1].copy(), self.np_random))

    def _choice(self, name, held):
        return int(self.np_random.choice(held) if name == "random" else held[0])

    def _observe(self, side):
        score = np.array([self.score[side], self.score[1 - side]]) / self.rounds
        return np.concatenate([self.hands[side], self.played[1 - side], score]).astype(np.float32)


class HighCardWithState(HighCard):
    """The same, able to say where it is."""

    def get_state(self):
        plain = {name: np.array(getattr(self, name)).astype(int).tolist() for name in ("hands", "played", "score")}
        return json.dumps([plain, self.np_random.bit_generator.state]).encode()

    def set_state(self, state):
        plain, generator = json.loads(state)
        self.hands, self.played = ([np.array(row, bool) for row in plain[name]] for name in ("hands", "played"))
        self.score = plain["score"]
        self.np_random.bit_generator.state = generator


class MortalHighCard(HighCard):
    """Now and then takes its process along, in the middle of a game; once for each deal."""

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
    """One legal action is right, and its index says nothing: only its features, next to what the state asks for, do."""

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
        random = self.np_random
        legal = random.permutation(self.n)[: random.integers(2, self.most + 1)]
        wanted = int(random.integers(2))  # of the second number, the largest or the smallest
        features = np.zeros(
            self.observation_space["action_features"].shape, self.observation_space["action_features"].dtype
        )
        features[legal] = random.uniform(-1, 1, (len(legal), 4))
        numbers = features[legal, 1]
        self.right = int(legal[numbers.argmax() if wanted else numbers.argmin()])
        self.mask = np.zeros(self.n, np.bool_)
        self.mask[legal] = True
        return {"action_features": features, "observation": np.array([wanted, random.normal()], np.float32).clip(-2, 2)}


class Leveled(Counter):
    """Names the stages in which it is best learned; its reset options say which level is played, and infos tell."""

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
    """Raises at level 3, whoever asks."""

    def step(self, action):
        if self.level == 3:
            raise ValueError("level 3 cannot be played")
        return super().step(action)


class BrightSquare(gym.Env):
    """Go to the bright square. The picture has the walker in one channel and the goal in the other."""

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
        there = bool((self.walker == self.goal).all())
        return self._observation(), 1.0 if there else -0.02, there, self.steps >= 40, {}

    def _observation(self):
        picture = np.zeros((2, self.side, self.side), np.uint8)
        for channel, (y, x) in zip(picture, (self.walker * self.cell, self.goal * self.cell), strict=True):
            channel[y : y + self.cell, x : x + self.cell] = 255
        picture = picture if self.channels_first else np.ascontiguousarray(picture.transpose(1, 2, 0))
        return {"map": picture, "time": np.float32([self.steps / 40])} if self.vector else picture


class Film(gym.Env):
    """Pictures and numbers that say which episode and step it is, stacked; the reward needs the oldest frame."""

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
        first = self._frame()
        blank = {key: np.zeros_like(value) for key, value in first.items()}
        self.seen = [*([blank if self.flaw == "zeros" else first] * (self.frames - 1)), first]
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
    """Pays for one of its two actions, and the better one is not known from what it shows."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action), terminated, truncated, info
