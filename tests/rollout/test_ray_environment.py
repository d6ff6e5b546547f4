"""Tokens and directories for Ray: private, complete, and deleted when nobody uses them any more."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from corral.cli.main import main
from corral.core.errors import UsageError
from corral.rollout import ray_environment
from corral.rollout.ray_node import NodeRequest, run_node

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")


def test_a_token_is_private_and_kept(tmp_path):
    file = tmp_path / "corral" / "token"
    ray_environment.make_token(file)
    token = file.read_text()
    ray_environment.make_token(file)
    assert file.read_text() == token and len(token) == 64 and list(file.parent.iterdir()) == [file]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    expected = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    assert ray_environment.token_environment(file) == expected


def test_a_token_that_others_can_read_or_that_is_missing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="copy it from the head of the cluster"):
        ray_environment.token_environment(tmp_path / "missing")
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o644)
    with pytest.raises(UsageError, match=r"others can read it; make it private with: chmod 600"):
        ray_environment.token_environment(file)


def test_the_users_token_is_used_unless_the_user_has_set_another(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert ray_environment.token_environment() == {}
    ray_environment.make_token(ray_environment.TOKEN_FILE.expanduser())
    assert ray_environment.token_environment()["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / ".corral" / "ray-token")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert ray_environment.token_environment() == {}


SCRIPT = "from corral.rollout.ray_environment import private_directory as d; print(d(), flush=True); input()"


def test_the_directory_of_a_killed_process_is_deleted_by_the_next_one_and_that_of_a_live_one_is_not(tmp_path):
    def start():
        command = [sys.executable, "-c", SCRIPT]
        environment = {**os.environ, "TMPDIR": str(short)}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        return process, Path(process.stdout.readline().strip())

    short = Path("/tmp") / f"c{os.getpid()}"
    short.mkdir()
    try:
        killed, left_over = start()
        killed.kill()
        killed.wait()
        live, used = start()
        last, of_last = start()
        assert not left_over.exists() and used.is_dir() and of_last.is_dir()
        assert stat.S_IMODE(used.stat().st_mode) == 0o700
        for process in (live, last):
            process.communicate("\n")
        assert not list(short.iterdir())
    finally:
        short.rmdir()


def test_replaced_variables_are_as_before_afterwards(monkeypatch):
    monkeypatch.setenv("ONE", "1")
    with ray_environment.replaced({"ONE": "2", "OTHER": "3"}):
        assert (os.environ["ONE"], os.environ["OTHER"]) == ("2", "3")
    assert os.environ["ONE"] == "1" and "OTHER" not in os.environ


@pytest.mark.parametrize(
    "flags, text",
    [
        ([], "give either --head, to start a cluster, or --join HOST:PORT"),
        (["--head", "--join", "a:1"], "give either --head"),
        (["--join", "6379"], "should be HOST:PORT"),
        (["--head", "--num-cpus", "-1"], "should be at least 0"),
    ],
)
def test_the_flags_of_a_node_are_checked(flags, text, capsys):
    assert main(["node", *flags]) == 2
    assert text in capsys.readouterr().err


def test_a_node_needs_the_token_of_its_head(tmp_path):
    with pytest.raises(UsageError, match="copy it from the head of the cluster"):
        run_node(NodeRequest(join="127.0.0.1:6379", token=tmp_path / "none"), print)
