"""A crash inside the emulator, or a kill of the trainer in the middle of an episode, changes no weights."""

import pytest

pytest.importorskip("pyboy")
CRASHING = "tests.faults.emulators:Crashing"
SHORT = {"episode_length": 60}


@pytest.mark.parametrize(
    "backend",
    ["worker", pytest.param("process", marks=pytest.mark.deep)],
)
def test_a_crash_of_pyboy_changes_no_weights(make_run, tmp_path, backend):
    kwargs = {"how": "segfault", "marker": tmp_path / "marker", **SHORT}
    run = make_run(CRASHING, backend=backend, env_kwargs=kwargs, timesteps=1024, batch_size=128)
    run.train().wait()
    assert (tmp_path / "marker").exists() and run.summary["restarts"] == 1 and run.summary["inexact"] == 0
    assert run.summary["weights_sha256"] == run.undisturbed_hash("corral_games.game_boy.env:GameBoy", env_kwargs=SHORT)


@pytest.mark.deep
def test_a_killed_run_resumes_in_the_middle_of_an_episode(make_run):
    run = make_run("game-boy", env_kwargs=SHORT, timesteps=1024, batch_size=128)
    trainer = run.train()
    trainer.wait_for_rows(2)
    trainer.kill()
    run.resume().wait()
    assert run.summary["inexact"] == 0
    assert run.summary["weights_sha256"] == run.undisturbed_hash()
