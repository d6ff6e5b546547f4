"""An actor's result for an env does not depend on the other envs in the batch."""

import dataclasses
import itertools

import numpy as np
import pytest
import threadpoolctl
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from corral.policy.mlp import MlpShape
from corral.policy.policy import Policy
from corral.rollout import actor_torch, mlp_actor
from corral.rollout.actors import actor_spec
from corral.rollout.batch_layout import BatchLayout, find_batch_layout

N_ENVS = 29


@given(st.integers(1, 20), st.lists(st.integers(0, 200), min_size=1, max_size=60))
def test_an_env_always_has_the_same_index_in_a_tile(tile, envs):
    row_layout = BatchLayout(tile, 3).rows_of(envs)
    rows = np.arange(row_layout.padded)[row_layout.rows]
    assert (rows % tile == np.array(envs) % tile).all()
    assert len(set(rows.tolist())) == len(envs) and row_layout.padded % tile == 0


@given(st.integers(1, 5), st.integers(1, 40))
def test_the_network_is_called_with_at_most_max_tiles_tiles(max_tiles, n_envs):
    row_layout = BatchLayout(4, max_tiles).rows_of(range(n_envs))
    calls = row_layout.calls()
    assert [row for call in calls for row in range(row_layout.padded)[call]] == list(range(row_layout.padded))
    assert all(call.stop - call.start <= 4 * max_tiles for call in calls)


def test_consecutive_rows_are_a_slice():
    assert BatchLayout(12, 4).rows_of(range(4, 8)).rows == slice(4, 8)
    assert BatchLayout(12, 4).rows_of(range(4, 8)).padded == 12
    assert isinstance(BatchLayout(12, 4).rows_of(range(8, 16)).rows, np.ndarray)  # the rows wrap around
    assert BatchLayout(12, 4).rows_of(range(8, 16)).padded == 12


def test_the_smallest_tile_with_reproducible_rows_is_found():
    def forward(rows, first, stop):
        """A network whose results differ a little for rows that are not in a whole tile of 8."""
        out = np.arange(first, stop, dtype=np.float64)
        out[(stop - first) // 8 * 8 :] += 1e-9
        return [out]

    assert find_batch_layout(forward, 20) == BatchLayout(8, 48)
    calls = iter(range(10**6))
    assert find_batch_layout(lambda rows, first, stop: [np.full(stop - first, next(calls))], 8) == BatchLayout(16, 1)


def assert_same_for_any_division(act_and_value):
    """Check that the results for all envs are those of actors that each have some of the envs.

    ``act_and_value(first, stop)`` returns actions, log-probabilities and values of the envs from ``first`` to ``stop``.
    """
    results_of_all = act_and_value(0, N_ENVS)
    for edges in ((0, 14, N_ENVS), (0, 1, 2, 12, 13, N_ENVS), (0, 7, 20, N_ENVS)):
        for first, stop in itertools.pairwise(edges):
            for results, expected in zip(act_and_value(first, stop), results_of_all, strict=True):
                assert np.array_equal(results, expected[first:stop])


@pytest.mark.parametrize("activation", ["tanh", "gelu"])  # the actors of numpy and of torch
@pytest.mark.parametrize("max_tiles", [None, 1])
def test_actors_return_the_same_for_any_division_of_the_envs(activation, max_tiles):
    torch.manual_seed(0)
    policy = Policy(spaces.Box(-1, 1, (5,)), spaces.MultiDiscrete([3, 2]), activation_fn=activation)
    spec = actor_spec(policy, None, torch.device("cpu"), N_ENVS)
    if max_tiles is not None:
        spec = dataclasses.replace(spec, batch_layout=BatchLayout(16, max_tiles))
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((N_ENVS, 5)).astype(np.float32)
    noise = (1 - rng.random((N_ENVS, 2))).astype(np.float32)

    def act_and_value(first, stop):
        actor = spec.build(first, stop - first)
        actor.load(policy.state_dict())
        sample = actor.act({"": observations[first:stop]}, None, noise[first:stop])
        values = actor.values({"": observations[first:stop]}, np.arange(first, stop))
        assert sample.values is None or np.array_equal(values, sample.values)
        return sample.actions, sample.log_probs.copy(), values.copy()

    assert_same_for_any_division(act_and_value)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])  # the actors of numpy and of torch
def test_actors_with_action_features_return_the_same_for_any_division_of_the_envs(activation):
    torch.manual_seed(0)
    n_actions, n_features = 50, 28
    box = spaces.Box(-1, 1, (5,))
    space = spaces.Dict(action_features=spaces.Box(-1, 1, (n_actions, n_features), np.float16), observation=box)
    policy = Policy(space, spaces.Discrete(n_actions), activation_fn=activation)
    torch.nn.init.normal_(policy.network.score.weight)
    spec = actor_spec(policy, None, torch.device("cpu"), N_ENVS)
    rng = np.random.default_rng(0)
    leaves = {
        "action_features": rng.standard_normal((N_ENVS, n_actions, n_features)).astype(np.float16),
        "observation": rng.standard_normal((N_ENVS, 5)).astype(np.float32),
    }
    masks = rng.random((N_ENVS, n_actions)) < rng.uniform(0.02, 0.9, (N_ENVS, 1))
    masks[:, 7] = True
    noise = (1 - rng.random((N_ENVS, 1))).astype(np.float32)

    @threadpoolctl.threadpool_limits.wrap(limits=1)  # as in training: threads divide large matrix products at any row
    def act_and_value(first, stop):
        actor = spec.build(first, stop - first)
        actor.load(policy.state_dict())
        observations = {path: leaf[first:stop] for path, leaf in leaves.items()}
        sample = actor.act(observations, masks[first:stop], noise[first:stop])
        values = actor.values(observations, np.arange(first, stop))
        return sample.actions.copy(), sample.log_probs.copy(), values.copy()

    actions, _, _ = act_and_value(0, N_ENVS)
    assert masks[np.arange(N_ENVS), actions[:, 0]].all()
    assert_same_for_any_division(act_and_value)


def test_values_of_final_observations_do_not_depend_on_the_others_in_the_batch():
    """An env may occur more than once, with the final observations of several episodes."""
    torch.manual_seed(0)
    policy = Policy(spaces.Box(-1, 1, (5,)), spaces.Discrete(2))
    actor = actor_spec(policy, None, torch.device("cpu"), 8).build(0, 8)
    actor.load(policy.state_dict())
    observations = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
    envs = np.array([3, 3, 3, 0, 7, 7, 1])
    values = actor.values({"": observations}, envs).copy()
    single_values = [float(actor.values({"": observations[i : i + 1]}, envs[i : i + 1])[0]) for i in range(7)]
    assert values.tolist() == single_values


def test_the_layout_of_the_built_in_network_is_searched_once_for_up_to_48_envs(monkeypatch):
    tested_n_envs = []
    monkeypatch.setattr(
        mlp_actor,
        "find_batch_layout",
        lambda run, n_envs: tested_n_envs.append(n_envs) or find_batch_layout(run, n_envs),
    )
    mlp_actor._search.cache_clear()
    shape = MlpShape(5, 2, (8,), (8,), "tanh")
    layouts = {n_envs: mlp_actor.find_mlp_batch_layout(shape, n_envs) for n_envs in (1, 8, 48, 48, 49)}
    assert tested_n_envs == [48, 49]
    assert layouts[1] == layouts[8] == layouts[48]


@pytest.mark.parametrize("activation", ["tanh", "gelu"])  # the actors of numpy and of torch
@pytest.mark.parametrize(
    ("observations", "actions"), [(spaces.Box(-1, 1, (70_000,)), 2), (spaces.Box(-1, 1, (4,)), 150_000)]
)
def test_a_very_large_network_has_a_fixed_layout_without_a_search(monkeypatch, activation, observations, actions):
    """A search would take minutes, so the network is always called with 16 rows."""
    for module in (mlp_actor, actor_torch):
        monkeypatch.setattr(module, "find_batch_layout", lambda *arguments, **kwargs: pytest.fail("searched"))
    policy = Policy(observations, spaces.Discrete(actions), activation_fn=activation, ortho_init=False)
    assert actor_spec(policy, None, torch.device("cpu"), 8).batch_layout == BatchLayout(16, 1)
