"""How near memory is to its end: files of both versions of control groups, as they are and as they should not be."""

from pathlib import Path

import pytest

from fabricd.daemon.memory_limit import MemoryLimit

MIB = 1 << 20


class Machine:
    """A process in groups whose files lie in a folder."""

    def __init__(self, folder: Path, cgroup: str) -> None:
        self.mounted = folder / "cgroup"
        self.now = 0.0
        (folder / "proc").mkdir()
        (folder / "proc/cgroup").write_text(cgroup)
        self.proc = folder / "proc"

    def put(self, group: str, **files: object) -> None:
        folder = self.mounted / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / f"memory.{name}").write_text(f"{text}\n")

    def limit(self) -> MemoryLimit:
        return MemoryLimit(self.proc, self.mounted, clock=lambda: self.now)


def stat(idle: int) -> str:
    return f"anon 7\ninactive_anon 9\ninactive_file {idle}\nactive_file 5"


@pytest.fixture
def unit(tmp_path) -> Machine:
    machine = Machine(tmp_path, "0::/system.slice/fabricd.service\n")
    machine.put("system.slice", max="max", high="max", current=900 * MIB)
    machine.put("system.slice/fabricd.service", max=1024 * MIB, high="max", current=100 * MIB, stat=stat(0))
    return machine


GROUP = "system.slice/fabricd.service"


def test_a_unit_near_its_limit_says_so_and_no_longer_than_that(unit):
    limit = unit.limit()
    assert limit.near() == ""
    unit.put(GROUP, current=970 * MIB)
    assert limit.near() == ""  # seen just now
    unit.now += 0.2
    assert limit.near() == "970 of 1024 MiB"
    unit.put(GROUP, max=2048 * MIB)  # systemctl set-property
    unit.now += 0.2
    assert limit.near() == ""


def test_what_the_kernel_takes_back_by_itself_does_not_count(unit):
    unit.put(GROUP, current=1000 * MIB, stat=stat(100 * MIB))
    assert unit.limit().near() == ""
    unit.put(GROUP, stat=stat(10 * MIB))
    assert unit.limit().near() == "990 of 1024 MiB"


def test_the_least_of_all_limits_counts(unit):
    unit.put("system.slice", max=910 * MIB)
    assert unit.limit().near() == "900 of 910 MiB"
    unit.put("system.slice", max="max")
    unit.put(GROUP, high=101 * MIB)
    assert unit.limit().near() == "100 of 101 MiB"


def test_of_a_whole_hosts_memory_a_little_is_enough(unit):
    unit.put("system.slice", max=2048 * 1024 * MIB, current=2000 * 1024 * MIB)
    assert unit.limit().near() == ""
    unit.put("system.slice", current=2048 * 1024 * MIB - 100 * MIB)
    assert unit.limit().near() == "2097052 of 2097152 MiB"


def test_version_1_beside_an_empty_version_2(tmp_path):
    machine = Machine(tmp_path, "12:pids:/a\n4:cpu,memory:/docker/x\n1:name=systemd:/\n0::/\n")
    machine.put("memory/docker/x", limit_in_bytes=9223372036854771712, usage_in_bytes=64 * MIB)
    assert machine.limit().near() == ""
    machine.put("memory/docker/x", limit_in_bytes=64 * MIB, stat=f"inactive_file 0\ntotal_inactive_file {MIB}")
    assert machine.limit().near() == "63 of 64 MiB"


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path):
    machine = Machine(tmp_path, "0::/kubepods/pod7/0123\n")  # the host's names, of which nothing is there
    machine.put("", max=64 * MIB, current=63 * MIB)
    assert machine.limit().near() == "63 of 64 MiB"


@pytest.mark.parametrize("cgroup", ["", "0::\n", "0::/a/../../..\n", "4:memory\n", "\0\n", "0::/gone\n"])
def test_no_groups_or_strange_ones_are_no_limit(tmp_path, cgroup):
    assert Machine(tmp_path, cgroup).limit().near() == ""


def test_files_with_other_text_are_no_limit(unit):
    unit.put(GROUP, max="many", current=1000 * MIB)
    assert unit.limit().near() == ""
    unit.put(GROUP, max=MIB, current="", high="")
    assert unit.limit().near() == ""


def test_this_process_has_groups_that_can_be_read():
    MemoryLimit().near()
