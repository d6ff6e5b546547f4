"""Territory as a Gymnasium env: a step is an order of the agent and the ten ticks that follow."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.files import inflate
from corral.core.suggestions import did_you_mean
from corral_games.territory.observe import GLOBALS, PLANES, shade, summarize
from corral_games.territory.rules import ANYONE, EVERYWHERE
from corral_games.territory.state import World, default_ticks, found

__all__ = ["DIRECTIONS", "FRAMES", "SHARES", "WAIT", "Territory"]

DIRECTIONS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW", "everywhere")
SHARES = (0, 2, 5, 15, 40)
"""Percent of all troops that an order sends. An action is ``direction * 5 + share``, both as indices."""
WAIT = EVERYWHERE * len(SHARES)
"""The action that gives no order: an attack that is under way goes on."""
FRAMES = 4
TICKS = 10
MOST_BOTS, SMALLEST, LARGEST, MOST_STEPS = 50, 32, 128, 1_000_000
LAND_REWARD, RANK_REWARD, BONUS = 10.0, 5.0, 1.0
"""Reward for all land of the map; for being first all the time; for winning, or for not losing."""


class Territory(gym.Env[Any, Any]):
    """One player against bots on a map: land feeds troops, troops take land. 80% of the land wins.

    Observation: ``map``, 4 frames of 5 planes (``observe.PLANES``), oldest first, and ``global``, 4 frames of 16
    numbers (``observe.GLOBALS``). At a reset the first frame is there four times. Action: ``direction * 5 + share``.

    ``reward``: ``territory`` pays 10 times the gain in share of the land; ``rank`` pays, over a whole game, 5 for being
    first in every step, later steps more than early ones. Both add 1 for a win and take 1 for a loss, which is to own
    nothing or to let a bot win. ``reset(options={"num_bots": n})`` plays an episode against as many.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}
    frame_stacks = {"map": FRAMES, "global": FRAMES}
    curriculum = tuple(
        {"name": f"{bots}-bots", "options": {"num_bots": bots}, "timesteps": steps}
        for bots, steps in ((10, 100_000), (25, 300_000), (50, 500_000))
    )

    def __init__(
        self,
        size: int = 64,
        num_bots: int = 10,
        reward: str = "territory",
        max_steps: int = 1000,
        render_mode: str | None = None,
    ) -> None:
        if reward not in _REWARDS:
            raise UsageError(f"unknown reward {reward!r}{did_you_mean(str(reward), _REWARDS)}; territory or rank")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UsageError(f"render_mode {render_mode!r}: territory is drawn with rgb_array or ansi")
        self.size = _checked("size", size, SMALLEST, LARGEST)
        self.max_steps = _checked("max_steps", max_steps, 1, MOST_STEPS)
        self.num_bots = _checked("num_bots", num_bots, 1, MOST_BOTS)
        self.reward, self.render_mode = reward, render_mode
        self.observation_space = spaces.Dict(
            {
                "map": spaces.Box(0, 255, (FRAMES * len(PLANES), self.size, self.size), np.uint8),
                "global": spaces.Box(-1.0, 1.0, (FRAMES * len(GLOBALS),), np.float32),
            }
        )
        self.action_space = spaces.Discrete(len(DIRECTIONS) * len(SHARES))
        self._ticks = default_ticks()
        self._world: World | None = None
        self._map = np.zeros((FRAMES * len(PLANES), self.size, self.size), np.uint8)
        self._global = np.zeros(FRAMES * len(GLOBALS), np.float32)
        self._mask = np.zeros(len(DIRECTIONS) * len(SHARES), np.bool_)
        self._steps, self._all_land, self._over = 0, 1, True

    # ---- Gymnasium ---------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game on a new map. Options: num_bots."""
        bots = _read_options(options, self.num_bots)
        super().reset(seed=seed)
        world = found(int(self.np_random.integers(1 << 62)), self.size, 1 + bots)
        self._enter(world, 0, False)
        self._look(world, int(world.land[0]))
        self._map.reshape(FRAMES, -1)[:-1] = self._map.reshape(FRAMES, -1)[-1]
        self._global.reshape(FRAMES, -1)[:-1] = self._global.reshape(FRAMES, -1)[-1]
        return self._observation(), self._info(world)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Give an order, and let ten ticks pass."""
        world, index = self._going_on(), int(action)
        if self._over:
            raise gym.error.ResetNeeded("the game is over; call reset() before step()")
        if not (0 <= index < len(self._mask) and self._mask[index]):
            raise ValueError(f"action {index} is not legal now; choose one that action_masks() allows")
        direction, share = divmod(index, len(SHARES))
        if share:
            world.order(0, direction, SHARES[share], ANYONE)
        before = int(world.land[0])
        self._ticks.advance(world, TICKS)
        self._steps += 1
        self._shift()
        self._look(world, before)
        winner = world.winner(self._all_land)
        terminated = winner is not None or not world.land[0]
        truncated = not terminated and self._steps >= self.max_steps
        self._over = terminated or truncated
        reward = self._pay(world, before, terminated, winner == 0)
        info = self._info(world)
        if self._over:
            info["won"] = float(winner == 0)
        return self._observation(), reward, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal: to wait, and every share in each direction in which there is a front."""
        self._going_on()
        return self._mask.copy()

    def render(self) -> Any:
        """The map and who is ahead: pixels, or text in colours."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: make the env with render_mode='rgb_array' or 'ansi'")
            return None
        from corral_games.territory.render import draw_picture, draw_text

        draw = draw_text if self.render_mode == "ansi" else draw_picture
        return draw(self._going_on(), self._steps, self.max_steps)

    # ---- states ------------------------------------------------------------------------------------------------

    def get_state(self) -> bytes:
        """Everything that decides how the env goes on, as plain data."""
        world = self._going_on()
        head = {
            "size": self.size,
            "max_steps": self.max_steps,
            "reward": self.reward,
            "steps": self._steps,
            "over": self._over,
            "np_random": self.np_random.bit_generator.state,
        }
        text = json.dumps(head).encode()
        packed = world.to_bytes() + self._map.tobytes() + self._global.tobytes()
        return _HEAD.pack(_MAGIC, len(text)) + text + zlib.compress(packed, 1)

    def set_state(self, state: bytes) -> None:
        """Go to where an env with the same settings was."""
        try:
            magic, length = _HEAD.unpack_from(state)
            if magic != _MAGIC:
                raise ValueError("it begins with other bytes")
            head = json.loads(state[_HEAD.size : _HEAD.size + length])
            for name in ("size", "max_steps", "reward"):
                if head[name] != getattr(self, name):
                    raise ValueError(f"it was saved with {name} {head[name]!r}, here it is {getattr(self, name)!r}")
            steps, over = int(head["steps"]), bool(head["over"])
            seen = self._map.nbytes + self._global.nbytes
            packed = inflate(state[_HEAD.size + length :], World.size_in_bytes(self.size, 1 + MOST_BOTS) + seen)
            world = World.from_bytes(packed[:-seen], self.size)
            _checked("num_bots", world.bots, 1, MOST_BOTS)
            self.np_random.bit_generator.state = head["np_random"]
        except (struct.error, ValueError, KeyError, TypeError, UsageError) as error:
            raise ValueError(
                f"{len(state)} bytes are no state of this territory env ({error}); give what get_state() returned"
            ) from None
        self._enter(world, steps, over)
        self._map.reshape(-1)[:] = np.frombuffer(packed, np.uint8, self._map.size, len(packed) - seen)
        self._global[:] = np.frombuffer(packed, np.float32, self._global.size, len(packed) - self._global.nbytes)
        self._allow(self._ticks.look_around(world, 0)[0])

    # ---- the game ----------------------------------------------------------------------------------------------

    def _enter(self, world: World, steps: int, over: bool) -> None:
        self._world, self._steps, self._over, self._all_land = world, steps, over, world.all_land

    def _shift(self) -> None:
        """Make room for the next frame; the oldest goes."""
        self._map[: -len(PLANES)] = self._map[len(PLANES) :]
        self._global[: -len(GLOBALS)] = self._global[len(GLOBALS) :]

    def _look(self, world: World, before: int) -> None:
        """The latest frame, and what is legal."""
        sectors, contacts = self._ticks.look_around(world, 0)
        self._allow(sectors)
        self._ticks.paint(world, shade(world, self._all_land), self._map[-len(PLANES) :])
        progress = self._steps / self.max_steps
        self._global[-len(GLOBALS) :] = summarize(world, self._all_land, contacts, before, progress)

    def _allow(self, sectors: npt.NDArray[np.int64]) -> None:
        legal = self._mask.reshape(len(DIRECTIONS), len(SHARES))
        legal[:EVERYWHERE] = (sectors > 0)[:, None]
        legal[EVERYWHERE] = sectors.any()
        legal[:, 0] = False
        legal[EVERYWHERE, 0] = True

    def _observation(self) -> dict[str, Any]:
        return {"map": self._map.copy(), "global": self._global.copy()}

    def _pay(self, world: World, before: int, terminated: bool, won: bool) -> float:
        bonus = (BONUS if won else -BONUS) if terminated else 0.0
        if self.reward == "territory":
            return LAND_REWARD * (int(world.land[0]) - before) / self._all_land + bonus
        weights = self.max_steps * (self.max_steps + 1) / 2
        earned = self._steps * (1 - (world.rank(0) - 1) / world.bots)
        if won:  # first in all steps that are not played
            earned += weights - self._steps * (self._steps + 1) / 2
        return RANK_REWARD * earned / weights + bonus

    def _info(self, world: World) -> dict[str, Any]:
        land = world.land
        return {
            "land_share": float(land[0]) / self._all_land,
            "rank": world.rank(0),
            "bots_alive": int(np.count_nonzero(land[1:])),
            "mean_bot_share": float(land[1:].sum()) / world.bots / self._all_land,
        }

    def _going_on(self) -> World:
        if self._world is None:
            raise gym.error.ResetNeeded("there is no game yet; call reset() first")
        return self._world


def _read_options(options: dict[str, Any] | None, bots: int) -> int:
    for name, value in (options or {}).items():
        if name != "num_bots":
            raise UsageError(f"unknown reset option {name!r}{did_you_mean(str(name), ['num_bots'])}; it takes num_bots")
        bots = _checked("num_bots", value, 1, MOST_BOTS)
    return bots


def _checked(name: str, number: Any, least: int, most: int) -> int:
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not whole or not least <= number <= most:
        raise UsageError(f"{name} {number!r} should be a whole number from {least} to {most}")
    return int(number)


_REWARDS = ("territory", "rank")
_HEAD = struct.Struct("<4sI")
_MAGIC = b"TE01"
