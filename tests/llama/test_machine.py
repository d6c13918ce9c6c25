"""Memory and cores, read from pretended /proc and cgroup files."""

import os
from pathlib import Path

import pytest

from engine.llama.plan import machine

MIB = 1 << 20
MEMINFO = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n"


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="ascii")


def test_available_memory_without_cgroups(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    assert machine.available_memory(tmp_path) == 8 * MIB


def test_a_cgroup_of_version_2_limits(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    put(tmp_path, "sys/fs/cgroup/pod/container/memory.max", f"{6 * MIB}\n")
    put(tmp_path, "sys/fs/cgroup/pod/container/memory.current", f"{4 * MIB}\n")
    put(tmp_path, "sys/fs/cgroup/pod/container/memory.stat", f"anon 7\ninactive_file {MIB}\n")
    assert machine.available_memory(tmp_path) == 3 * MIB


def test_a_parent_cgroup_may_be_the_narrower(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    put(tmp_path, "sys/fs/cgroup/pod/container/memory.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/pod/container/memory.current", "1\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.max", f"{2 * MIB}\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.current", f"{MIB}\n")
    assert machine.available_memory(tmp_path) == MIB


def test_a_cgroup_of_version_1_limits(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{4 * MIB}\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", f"{4 * MIB}\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.stat", f"total_inactive_file {2 * MIB}\n")
    assert machine.available_memory(tmp_path) == 2 * MIB


def test_a_cgroup_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/\n")
    put(tmp_path, "sys/fs/cgroup/memory.max", "10\n")
    put(tmp_path, "sys/fs/cgroup/memory.current", "20\n")
    assert machine.available_memory(tmp_path) == 0


def test_without_proc_sysconf_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert machine.available_memory(tmp_path) == 409_600


def test_where_nothing_tells_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert machine.available_memory(tmp_path) is None


def test_anonymous_memory(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status", "Name:\tpython\nVmRSS:\t 900 kB\nRssAnon:\t     512 kB\n")
    assert machine.anonymous_memory(tmp_path) == 512 * 1024
    assert machine.anonymous_memory(tmp_path / "elsewhere") is None


def use_cpus(monkeypatch: pytest.MonkeyPatch, cpus: set[int]) -> None:
    def affinity(_process: int) -> set[int]:
        return cpus

    monkeypatch.setattr(os, "sched_getaffinity", affinity, raising=False)


def test_one_thread_per_core_for_a_token_and_one_per_cpu_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        put(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    use_cpus(monkeypatch, {0, 1, 2, 3})
    assert (machine.default_threads(tmp_path), machine.batch_threads(tmp_path)) == (2, 4)
    use_cpus(monkeypatch, {0, 2})
    assert (machine.default_threads(tmp_path), machine.batch_threads(tmp_path)) == (1, 2)
    use_cpus(monkeypatch, {5, 6, 7})  # no topology: each counts
    assert machine.default_threads(tmp_path) == 3


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "600000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
            },
            3,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        (
            {
                "proc/self/cgroup": "1:cpu,cpuacct:/j\n",
                "sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        ({}, 8),
    ],
)
def test_a_quota_bounds_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], threads: int
) -> None:
    for path, text in files.items():
        put(tmp_path, path, text)
    use_cpus(monkeypatch, set(range(8)))
    assert machine.default_threads(tmp_path) == machine.batch_threads(tmp_path) == threads


def test_this_machine_has_something() -> None:
    assert (machine.available_memory() or 0) > MIB
    assert machine.default_threads() >= 1
