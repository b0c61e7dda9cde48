"""Models from the Hugging Face hub, through the optional package `huggingface-hub`."""

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from headway.errors import DownloadError

HUB_PREFIX = "hf:"

_CONNECT_S = 5.0

_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_FOLDER_PATTERNS = ("*.json", "*.safetensors", "*.jinja")
_SKIPPED = ("consolidated*", "original/*", "*/*")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, and the file wanted of it (None = what makes a model)."""

    repo: str
    file: str | None

    @staticmethod
    def parse(spec: str) -> "HubName":
        """From `hf:ORG/REPO[:FILE]`, with or without the prefix. Raises DownloadError."""
        repo, colon, file = spec.removeprefix(HUB_PREFIX).partition(":")
        if not _REPO.fullmatch(repo) or (colon and not file) or ".." in spec:
            raise DownloadError(f"{spec!r} is not of the form {HUB_PREFIX}ORG/REPO[:FILE]")
        return HubName(repo, file or None)


def pull_hub(
    spec: str,
    endpoint: str | None = None,
    cache: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> Path:
    """Fetch `hf:ORG/REPO[:FILE]`: that file; or the folder if the repository holds safetensors; or
    its GGUF file if it has only one. Returns the file's or folder's path.

    endpoint, cache: the hub's address and the local cache, the package's own defaults if None
    (HF_ENDPOINT, HF_HOME; HF_TOKEN gives access to private repositories).
    Raises DownloadError, in one line.
    """
    name = HubName.parse(spec)
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants
    except ImportError as e:
        raise DownloadError("models from the hub need: pip install 'headway[hub]'") from e
    unreachable = _unreachable(endpoint or constants.ENDPOINT)
    try:
        file = name.file
        if file is None:
            if unreachable:
                raise DownloadError(f"{HUB_PREFIX}{name.repo}: {unreachable}")
            files = hub.HfApi(endpoint=endpoint).list_repo_files(name.repo)
            file = _model_file(name.repo, files)
        if file is not None:
            path = hub.hf_hub_download(
                name.repo,
                file,
                endpoint=endpoint,
                cache_dir=cache,
                local_files_only=bool(unreachable),
            )
        else:
            path = hub.snapshot_download(
                name.repo,
                endpoint=endpoint,
                cache_dir=cache,
                allow_patterns=list(_FOLDER_PATTERNS),
                ignore_patterns=list(_SKIPPED),
            )
    except DownloadError:
        raise
    except Exception as e:
        # The package changed the base of its errors, and its HTTP library's, between versions.
        reason = unreachable or " ".join(str(e).split())[:300]
        raise DownloadError(f"{HUB_PREFIX}{name.repo}: {reason}") from e
    if report is not None:
        report(f"{HUB_PREFIX}{name.repo}: {path}")
    return Path(path)


def _unreachable(endpoint: str) -> str:
    """Why the hub can't be reached; empty if it can, or if a proxy would know. The package itself
    tries for half a minute, with a warning each time."""
    parts = urlsplit(endpoint)
    if not parts.hostname or getproxies().get(parts.scheme):
        return ""
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname, port), _CONNECT_S).close()
    except OSError as error:
        return f"{parts.hostname} can't be reached: {error.strerror or error}"
    return ""


def _model_file(repo: str, files: Sequence[str]) -> str | None:
    """The one file that is the model, or None where the folder is."""
    top = [file for file in files if "/" not in file]
    if "config.json" in top and any(file.endswith(".safetensors") for file in top):
        return None
    found = [file for file in files if file.endswith(".gguf")]
    if len(found) == 1:
        return found[0]
    if not found:
        raise DownloadError(f"{HUB_PREFIX}{repo}: holds neither safetensors nor a GGUF file")
    some = ", ".join(sorted(found)[:8])
    raise DownloadError(f"{HUB_PREFIX}{repo}: choose a file with {HUB_PREFIX}{repo}:FILE ({some})")
