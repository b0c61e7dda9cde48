"""Limits read from made-up /proc and /sys trees."""

import math
import os
from pathlib import Path

import pytest

from headway.executors.cpu import (
    available_memory_bytes,
    cpu_quota,
    cpu_time,
    may_spin,
    usable_cpus,
)

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    """A file system with those files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_no_files_mean_no_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == math.inf
    assert usable_cpus(tmp_path) >= 1
    assert available_memory_bytes(tmp_path) > 0


@pytest.mark.parametrize(
    ("text", "cpus"), [("max 100000", math.inf), ("150000 100000", 1.5), ("50000 100000", 0.5)]
)
def test_quota_of_cgroup_v2(tmp_path: Path, text: str, cpus: float) -> None:
    write(tmp_path, {"sys/fs/cgroup/cpu.max": text, "proc/self/cgroup": "0::/"})
    assert cpu_quota(tmp_path) == cpus


def test_a_parents_quota_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/cpu.max": "200000 100000",
    }
    assert cpu_quota(write(tmp_path, files)) == 2


@pytest.mark.parametrize(("quota", "cpus"), [("-1", math.inf), ("250000", 2.5)])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, cpus: float) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/x",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    assert cpu_quota(write(tmp_path, files)) == cpus


def test_threads_are_the_quota_rounded_up(tmp_path: Path) -> None:
    write(tmp_path, {"sys/fs/cgroup/cpu.max": "20000 100000"})
    assert cpu_time(tmp_path) == 0.2
    assert usable_cpus(tmp_path) == 1


@pytest.mark.parametrize(
    ("quota", "threads", "spins"),
    [("max", 2, True), ("200000", 2, True), ("150000", 2, False), ("150000", 1, True)],
)
def test_threads_spin_only_with_a_cpu_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int, spins: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1}, raising=False)
    write(tmp_path, {"sys/fs/cgroup/cpu.max": f"{quota} 100000"})
    assert may_spin(threads, tmp_path) == spins


def test_affinity_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3}, raising=False)
    assert usable_cpus(tmp_path) == 1


def test_memory_is_the_least_of_kernel_and_cgroup(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": "max",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 8 * GIB
    limit = {
        "sys/fs/cgroup/memory.max": str(4 * GIB),
        "sys/fs/cgroup/memory.current": str(3 * GIB),
        "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}",
    }
    assert available_memory_bytes(write(tmp_path, limit)) == 2 * GIB


def test_memory_limit_of_cgroup_v1(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": f"MemAvailable: {8 * GIB // 1024} kB",
        "proc/self/cgroup": "9:memory:/",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(9223372036854771712),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 8 * GIB
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = str(2 * GIB)
    assert available_memory_bytes(write(tmp_path, files)) == 2 * GIB - 1000
