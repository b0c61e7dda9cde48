"""What this process may use of the machine: CPUs and memory, containers' limits included."""

import math
import os
from pathlib import Path

_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a number about 2^63


def usable_cpus(root: Path = Path("/")) -> int:
    """Threads worth starting: `cpu_time` rounded up."""
    return max(1, math.ceil(cpu_time(root)))


def cpu_time(root: Path = Path("/")) -> float:
    """CPUs worth of time this process may use: affinity, and the cgroup's CPU quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return min(affinity or os.cpu_count() or 1, cpu_quota(root))


def may_spin(threads: int, root: Path = Path("/")) -> bool:
    """Whether so many threads may wait for each other without sleeping: each has a CPU's worth of
    time. With less, a spinning thread takes the time of the one it waits for."""
    return threads <= cpu_time(root)


def cpu_quota(root: Path = Path("/")) -> float:
    """CPUs worth of time the cgroup grants; inf without a quota."""
    quotas = [_quota_v2(folder) for folder in _folders(root, "")]
    quotas += [_quota_v1(folder) for folder in _folders(root, "cpu")]
    return min(quotas, default=math.inf)


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can still be allocated: the least of what the kernel has to give and what the
    cgroup's limit leaves."""
    left = [
        _memory_left(folder, "memory.max", "memory.current") for folder in _folders(root, "")
    ] + [
        _memory_left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")
        for folder in _folders(root, "memory")
    ]
    return int(min([_kernel_available_bytes(root), *left]))


def _folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's cgroup and its parents; `controller` names a v1 one, "" is v2.

    Inside a container the path in /proc may name a folder that only the host sees: the mount's
    own root is then the container's cgroup, and it is in the list in any case.
    """
    mount = root / "sys/fs/cgroup" / controller
    path = _own_cgroup(root, controller)
    inner = [mount.joinpath(*path.parts[1:])] if path is not None else []
    chain = [p for folder in inner for p in [folder, *folder.parents] if p.is_relative_to(mount)]
    return [p for p in dict.fromkeys([*chain, mount]) if p.is_dir()]


def _own_cgroup(root: Path, controller: str) -> Path | None:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return Path(path)
    return None


def _quota_v2(folder: Path) -> float:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() else math.inf


def _quota_v1(folder: Path) -> float:
    quota = _text(folder / "cpu.cfs_quota_us")
    period = _text(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else math.inf


def _memory_left(folder: Path, limit_file: str, usage_file: str) -> float:
    limit, used = _text(folder / limit_file), _text(folder / usage_file)
    if not limit.isdigit() or int(limit) > _NO_LIMIT:
        return math.inf
    # Page cache counts as usage and is given back under pressure.
    cached = _field(folder / "memory.stat", "inactive_file") if used.isdigit() else 0
    return max(0, int(limit) - max(0, int(used or 0) - cached))


def _kernel_available_bytes(root: Path) -> int:
    kilobytes = _field(root / "proc/meminfo", "MemAvailable:")
    if kilobytes:
        return kilobytes * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _field(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    return 0


def _text(path: Path) -> str:
    """A small kernel file, stripped; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
