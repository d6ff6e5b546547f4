import pytest

from corral.core import machine


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A container's view of its control group."""
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    (tmp_path / "own").mkdir()
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory,other:/own\n3:cpu,cpuacct:/own\n0::/own\n")
    return tmp_path


@pytest.mark.parametrize(("limit", "cores"), [("150000 100000", 1.5), ("max 100000", 1e9), ("50000 100000", 0.5)])
def test_a_containers_share_of_the_cores_counts(cgroup, limit, cores):
    (cgroup / "own" / "cpu.max").write_text(limit)
    assert machine._cgroup_cores() == cores
    assert 1 <= machine.available_cores() <= max(1, cores + 1)


def test_the_tightest_limit_counts_also_of_the_older_kind(cgroup):
    (cgroup / "own" / "cpu.max").write_text("400000 100000")
    (cgroup / "cpu.max").write_text("200000 100000")
    assert machine._cgroup_cores() == 2
    (cgroup / "cpu").mkdir()
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert machine._cgroup_cores() == 1
    assert machine.available_cores() == 1


def test_a_process_can_be_told_to_leave_cores_to_others(cgroup, monkeypatch):
    everything = machine.available_cores()
    for told, cores in (("1", 1), ("999", everything), ("", everything), ("many", everything), ("0", 1)):
        monkeypatch.setenv(machine.CORES, told)
        assert machine.available_cores() == cores


def test_a_containers_memory_counts(cgroup):
    (cgroup / "own" / "memory.max").write_text(str(3 * 2**20))
    (cgroup / "own" / "memory.current").write_text(str(2**20))
    assert machine.available_memory() == 2 * 2**20


@pytest.mark.parametrize("group", ["", "own"], ids=["of a container", "own"])
def test_memory_limits_of_the_older_kind_count_too(cgroup, group):
    folder = cgroup / "memory" / group
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(5 * 2**20))
    (folder / "memory.usage_in_bytes").write_text(str(2**20))
    assert machine.available_memory() == 4 * 2**20
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712")  # none
    assert machine.available_memory() > 2**30


def test_without_limits_there_is_the_whole_machine(cgroup):
    assert machine.available_cores() >= 1
    assert machine.available_memory() > 2**20
