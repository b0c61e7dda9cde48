"""The machine that figures were taken on."""

import platform
from dataclasses import dataclass
from pathlib import Path

from headway import _native
from headway.executors.cpu import usable_cpus


@dataclass(frozen=True, slots=True)
class Machine:
    """What speed depends on. memory_gib: in all; path: of the matrix products; cores: usable."""

    processor: str
    cores: int
    memory_gib: int
    path: str
    system: str
    python: str

    def __str__(self) -> str:
        """In one line."""
        return (
            f"{self.processor}, {self.cores} cores, path {self.path}; {self.memory_gib} GiB of "
            f"memory; {self.system}, Python {self.python}"
        )

    def differs(self, other: "Machine") -> list[str]:
        """Names of the fields in which the two are not alike."""
        return [name for name in self.__slots__ if getattr(self, name) != getattr(other, name)]


def this_machine(root: Path = Path("/")) -> Machine:
    """As Linux describes it below `root`; what isn't told is named by Python, or is 0."""
    release = _field(root / "etc/os-release", "PRETTY_NAME", "=").strip('"')
    memory = _field(root / "proc/meminfo", "MemTotal", ":").split()
    return Machine(
        processor=_field(root / "proc/cpuinfo", "model name", ":") or platform.machine(),
        cores=usable_cpus(),
        memory_gib=round(int(memory[0]) / 2**20) if memory else 0,
        path=_native.best_isa().name,
        system=f"{release or platform.system()}, kernel {platform.release()}",
        python=platform.python_version(),
    )


def _field(file: Path, name: str, separator: str) -> str:
    """The value on the first line of that name; empty if there is none."""
    if not file.exists():
        return ""
    for line in file.read_text().splitlines():
        key, _, value = line.partition(separator)
        if key.strip() == name:
            return value.strip()
    return ""
