import pytest

from corral.core import machine


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Replace ``/sys/fs/cgroup`` and ``/proc`` by directories in which this process belongs to the cgroup ``own``."""
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    (tmp_path / "own").mkdir()
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory,other:/own\n3:cpu,cpuacct:/own\n0::/own\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cpu_max", "quota_cores"), [("150000 100000", 1.5), ("max 100000", 1e9), ("50000 100000", 0.5)]
)
def test_the_cpu_quota_of_a_container_limits_the_cores(cgroup, cpu_max, quota_cores):
    (cgroup / "own" / "cpu.max").write_text(cpu_max)
    assert machine._cgroup_cores() == quota_cores
    assert 1 <= machine.available_cores() <= max(1, quota_cores + 1)


def test_the_lowest_cpu_quota_of_all_cgroups_counts_in_versions_1_and_2(cgroup):
    (cgroup / "own" / "cpu.max").write_text("400000 100000")
    (cgroup / "cpu.max").write_text("200000 100000")
    assert machine._cgroup_cores() == 2
    (cgroup / "cpu").mkdir()
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert machine._cgroup_cores() == 1
    assert machine.available_cores() == 1


def test_an_environment_variable_limits_the_number_of_cores(cgroup, monkeypatch):
    all_cores = machine.available_cores()
    for value, cores in (("1", 1), ("999", all_cores), ("", all_cores), ("many", all_cores), ("0", 1)):
        monkeypatch.setenv(machine.CORES_VARIABLE, value)
        assert machine.available_cores() == cores


def test_the_memory_limit_of_a_container_counts(cgroup):
    (cgroup / "own" / "memory.max").write_text(str(3 * 2**20))
    (cgroup / "own" / "memory.current").write_text(str(2**20))
    assert machine.available_memory() == 2 * 2**20


@pytest.mark.parametrize("group", ["", "own"], ids=["root cgroup", "child cgroup"])
def test_memory_limits_of_cgroups_version_1_count(cgroup, group):
    directory = cgroup / "memory" / group
    directory.mkdir(parents=True)
    (directory / "memory.limit_in_bytes").write_text(str(5 * 2**20))
    (directory / "memory.usage_in_bytes").write_text(str(2**20))
    assert machine.available_memory() == 4 * 2**20
    (directory / "memory.limit_in_bytes").write_text("9223372036854771712")  # no limit
    assert machine.available_memory() > 2**30


def test_without_cgroup_limits_the_whole_machine_is_available(cgroup):
    assert machine.available_cores() >= 1
    assert machine.available_memory() > 2**20
