"""Territory as a Gymnasium env: a step is an order of the agent and ten ticks of the game."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.files import inflate
from corral.core.suggestions import did_you_mean
from corral_games.territory.observe import GLOBALS, PLANES, global_features, plane_values
from corral_games.territory.rules import ANYONE, EVERYWHERE
from corral_games.territory.state import Ints, World, default_ticks, new_world

__all__ = ["DIRECTIONS", "FRAMES", "SHARES", "WAIT", "Territory"]

DIRECTIONS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW", "everywhere")
SHARES = (0, 2, 5, 15, 40)
"""Percent of all its troops that the agent sends. An action is ``direction * 5 + share``, both as indices."""
WAIT = EVERYWHERE * len(SHARES)
"""The action that gives no order: the attack that is under way continues."""
FRAMES = 4
"""Frames in an observation."""
TICKS_PER_STEP = 10
MAX_BOTS, MIN_SIZE, MAX_SIZE, MAX_STEPS = 50, 32, 128, 1_000_000
"""Limits of the arguments ``num_bots``, ``size`` and ``max_steps``."""
LAND_REWARD, RANK_REWARD, BONUS = 10.0, 5.0, 1.0
"""Reward for taking all land of the map; for being first in every step; for a win (and minus that for a loss)."""
_REWARDS = ("territory", "rank")
# A saved state is a header (magic number, length of the JSON), JSON, and the compressed world and frames.
_HEADER = struct.Struct("<4sI")
_MAGIC = b"TE01"


class Territory(gym.Env[Any, Any]):
    """One player against bots on a map: troops grow with land, and troops take land. 80% of the land wins.

    Observation: ``map``, 4 frames of 5 planes (``observe.PLANES``), oldest first, and ``global``, 4 frames of 16
    numbers (``observe.GLOBALS``). A reset fills all four frames with the first one. Action: ``direction * 5 + share``.

    ``reward="territory"`` pays 10 times the increase of the agent's share of all land. ``reward="rank"`` pays a total
    of 5 for being first in every step of an episode, and more for late steps than for early ones. Both add 1 for a win
    and subtract 1 for a loss. The agent loses if it has no land left or a bot wins.

    ``reset(options={"num_bots": n})`` starts an episode against ``n`` bots.
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
            guess = did_you_mean(str(reward), _REWARDS)
            raise UsageError(f"unknown reward {reward!r}{guess}; choose territory or rank")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UsageError(f"unknown render_mode {render_mode!r}; choose rgb_array or ansi")
        self.size = _checked_int("size", size, MIN_SIZE, MAX_SIZE)
        self.max_steps = _checked_int("max_steps", max_steps, 1, MAX_STEPS)
        self.num_bots = _checked_int("num_bots", num_bots, 1, MAX_BOTS)
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
        self._steps, self._all_land, self._is_over = 0, 1, True

    # ---- Gymnasium ---------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a game on a new map. Options: num_bots."""
        bots = _read_num_bots(options, self.num_bots)
        super().reset(seed=seed)
        world = new_world(int(self.np_random.integers(1 << 62)), self.size, 1 + bots)
        self._set_world(world, steps=0, is_over=False)
        self._write_frame(world, land_before=int(world.land[0]))
        for frames in (self._map.reshape(FRAMES, -1), self._global.reshape(FRAMES, -1)):
            frames[:-1] = frames[-1]
        return self._observation(), self._info(world)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Give an order, and play ten ticks."""
        world, index = self._started_world(), int(action)
        if self._is_over:
            raise gym.error.ResetNeeded("the game is over; call reset() before step()")
        if not (0 <= index < len(self._mask) and self._mask[index]):
            raise ValueError(f"action {index} is not legal now; choose one that action_masks() allows")
        direction, share = divmod(index, len(SHARES))
        if share:
            world.order(0, direction, SHARES[share], ANYONE)
        land_before = int(world.land[0])
        self._ticks.advance(world, TICKS_PER_STEP)
        self._steps += 1
        self._shift_frames()
        self._write_frame(world, land_before)
        winner = world.winner(self._all_land)
        terminated = winner is not None or not world.land[0]
        truncated = not terminated and self._steps >= self.max_steps
        self._is_over = terminated or truncated
        reward = self._step_reward(world, land_before, terminated, has_won=winner == 0)
        info = self._info(world)
        if self._is_over:
            info["won"] = float(winner == 0)
        return self._observation(), reward, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal: to wait, and every share in each direction that has a front."""
        self._started_world()
        return self._mask.copy()

    def render(self) -> Any:
        """Return the map and a ranking of the players: pixels, or text in colours."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: make the env with render_mode='rgb_array' or 'ansi'")
            return None
        from corral_games.territory.render import draw_picture, draw_text

        draw = draw_text if self.render_mode == "ansi" else draw_picture
        return draw(self._started_world(), self._steps, self.max_steps)

    # ---- states ------------------------------------------------------------------------------------------------

    def get_state(self) -> bytes:
        """Return everything that determines the rest of the game and the following episodes, as bytes."""
        world = self._started_world()
        header = {
            "size": self.size,
            "max_steps": self.max_steps,
            "reward": self.reward,
            "steps": self._steps,
            "over": self._is_over,
            "np_random": self.np_random.bit_generator.state,
        }
        text = json.dumps(header).encode()
        data = world.to_bytes() + self._map.tobytes() + self._global.tobytes()
        return _HEADER.pack(_MAGIC, len(text)) + text + zlib.compress(data, 1)

    def set_state(self, state: bytes) -> None:
        """Restore what ``get_state`` of an env with the same settings returned; raise a ValueError for other bytes."""
        try:
            saved = self._parse_state(state)
            self.np_random.bit_generator.state = saved.np_random
        except (struct.error, ValueError, KeyError, TypeError, UsageError) as error:
            raise ValueError(
                f"{len(state)} bytes are not a state of this territory env ({error}); give what get_state() returned"
            ) from None
        self._set_world(saved.world, saved.steps, saved.is_over)
        self._map.reshape(-1)[:] = np.frombuffer(saved.frames, np.uint8, self._map.size)
        self._global[:] = np.frombuffer(saved.frames, np.float32, self._global.size, self._map.nbytes)
        self._update_mask(self._ticks.measure_border(saved.world, 0).sectors)

    def _parse_state(self, state: bytes) -> _SavedState:
        """Return the parts of a state; raise if it is damaged or from an env with other settings."""
        magic, length = _HEADER.unpack_from(state)
        if magic != _MAGIC:
            raise ValueError(f"it does not begin with {_MAGIC!r}")
        header = json.loads(state[_HEADER.size : _HEADER.size + length])
        for name in ("size", "max_steps", "reward"):
            if header[name] != getattr(self, name):
                raise ValueError(f"it was saved with {name} {header[name]!r}, here it is {getattr(self, name)!r}")
        steps, is_over = int(header["steps"]), bool(header["over"])
        frame_bytes = self._map.nbytes + self._global.nbytes
        max_bytes = World.size_in_bytes(self.size, 1 + MAX_BOTS) + frame_bytes
        data = inflate(state[_HEADER.size + length :], max_bytes)
        world = World.from_bytes(data[:-frame_bytes], self.size)
        _checked_int("num_bots", world.bots, 1, MAX_BOTS)
        return _SavedState(
            world=world, frames=data[-frame_bytes:], steps=steps, is_over=is_over, np_random=header["np_random"]
        )

    # ---- the game ----------------------------------------------------------------------------------------------

    def _set_world(self, world: World, steps: int, is_over: bool) -> None:
        self._world, self._steps, self._is_over, self._all_land = world, steps, is_over, world.all_land

    def _started_world(self) -> World:
        if self._world is None:
            raise gym.error.ResetNeeded("there is no game yet; call reset() first")
        return self._world

    def _shift_frames(self) -> None:
        """Drop the oldest frame, to make room for the next."""
        self._map[: -len(PLANES)] = self._map[len(PLANES) :]
        self._global[: -len(GLOBALS)] = self._global[len(GLOBALS) :]

    def _write_frame(self, world: World, land_before: int) -> None:
        """Write the latest frame, and update which actions are legal."""
        border = self._ticks.measure_border(world, 0)
        self._update_mask(border.sectors)
        self._ticks.write_planes(world, plane_values(world, self._all_land), self._map[-len(PLANES) :])
        progress = self._steps / self.max_steps
        features = global_features(world, self._all_land, border.contacts, land_before, progress)
        self._global[-len(GLOBALS) :] = features

    def _update_mask(self, sectors: Ints) -> None:
        """Allow each direction in which the border has a length, and waiting. ``sectors`` is [8]."""
        mask = self._mask.reshape(len(DIRECTIONS), len(SHARES))
        mask[:EVERYWHERE] = (sectors > 0)[:, None]
        mask[EVERYWHERE] = sectors.any()
        mask[:, 0] = False
        mask[EVERYWHERE, 0] = True

    def _observation(self) -> dict[str, Any]:
        return {"map": self._map.copy(), "global": self._global.copy()}

    def _step_reward(self, world: World, land_before: int, terminated: bool, has_won: bool) -> float:
        bonus = (BONUS if has_won else -BONUS) if terminated else 0.0
        if self.reward == "territory":
            return LAND_REWARD * (int(world.land[0]) - land_before) / self._all_land + bonus
        # step t has weight t, and a player that is first in it earns that weight
        all_weights = self.max_steps * (self.max_steps + 1) / 2
        earned = self._steps * (1 - (world.rank(0) - 1) / world.bots)
        if has_won:  # the steps that are not played count as first
            earned += all_weights - self._steps * (self._steps + 1) / 2
        return RANK_REWARD * earned / all_weights + bonus

    def _info(self, world: World) -> dict[str, Any]:
        land = world.land
        return {
            "land_share": float(land[0]) / self._all_land,
            "rank": world.rank(0),
            "bots_alive": int(np.count_nonzero(land[1:])),
            "mean_bot_share": float(land[1:].sum()) / world.bots / self._all_land,
        }


class _SavedState(NamedTuple):
    """The parts of a saved state that are not settings."""

    world: World
    frames: bytes
    """The frames of ``map``, then those of ``global``."""
    steps: int
    is_over: bool
    np_random: Any
    """The state of the bit generator."""


def _read_num_bots(options: dict[str, Any] | None, default: int) -> int:
    """Return the number of bots in reset options, or the default; raise a UsageError for any other option."""
    bots = default
    for name, value in (options or {}).items():
        if name != "num_bots":
            guess = did_you_mean(str(name), ["num_bots"])
            raise UsageError(f"unknown reset option {name!r}{guess}; Territory has only num_bots")
        bots = _checked_int("num_bots", value, 1, MAX_BOTS)
    return bots


def _checked_int(name: str, number: Any, least: int, most: int) -> int:
    is_int = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not is_int or not least <= number <= most:
        raise UsageError(f"{name} {number!r} should be a whole number from {least} to {most}")
    return int(number)
