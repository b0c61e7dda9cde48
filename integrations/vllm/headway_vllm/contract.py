"""What of vLLM the integration leans on, with a fingerprint for each version it was tested with.

None of it is a public interface of vLLM. A fingerprint is the source of a function, hashed without
comments, docstrings and white space, so that it changes when the code does.
"""

import ast
import hashlib
import inspect
import textwrap
import tokenize
from collections.abc import Callable
from importlib import import_module
from typing import Any

from headway_vllm.versions import SUPPORTED, Version

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"

LEANED_ON = (
    f"{_SCHEDULER}.__init__",
    f"{_SCHEDULER}.schedule",
    f"{_SCHEDULER}._preempt_request",
    f"{_SCHEDULER}._free_request",
    f"{_SCHEDULER}._request_blocks_can_be_freed",
    f"{_SCHEDULER}._handle_blocked_waiting_request",
    f"{_SCHEDULER}._update_after_schedule",
    f"{_SCHEDULER}.reset_prefix_cache",
    f"{_SCHEDULER}.make_stats",
    f"{_CONNECTOR}.__init__",
    f"{_CONNECTOR}.get_num_new_matched_tokens",
    f"{_CONNECTOR}.update_state_after_alloc",
    f"{_CONNECTOR}.handle_preemptions",
    f"{_CONNECTOR}.start_load_kv",
    "vllm.v1.core.sched.request_queue:RequestQueue",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.get_computed_blocks",
    "vllm.v1.worker.kv_connector_model_runner_mixin:KVConnectorModelRunnerMixin",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states",
)
"""Functions and classes, `module:name`."""


def installed() -> str:
    """The version of vLLM, whichever distribution it came as. Raises ImportError without one."""
    version: str = import_module("vllm.version").__version__
    return version


def fingerprint(name: str) -> str:
    """Of a function or class, by `module:name`; "missing" where there is none."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = inspect.getattr_static(found, part)
    except (ImportError, AttributeError):
        return "missing"
    return digest(inspect.getsource(_plain(found)))


def digest(source: str) -> str:
    """Hash of Python source without comments, docstrings and white space; the same on every
    version of Python."""
    text = textwrap.dedent(source)
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                last = first.end_lineno or first.lineno
                lines[first.lineno - 1 : last] = ["\n"] * (last - first.lineno + 1)
    code = "".join(
        token.string
        for token in tokenize.generate_tokens(iter(lines).__next__)
        if token.type != tokenize.COMMENT
    )
    return hashlib.sha256("".join(code.split()).encode()).hexdigest()[:16]


def differences() -> list[str]:
    """What keeps the installed vLLM from being one we were tested with, a line each. Where its
    minor version was not tested, the first line says so, and the others how it differs from the
    tested one that is most like it."""
    version = installed()
    minor = ".".join(version.split(".")[:2])
    now = tuple(fingerprint(name) for name in LEANED_ON)
    known = next((v for v in SUPPORTED if v.minor == minor), None)
    if known is not None:
        return _changes(version, now, known)
    tested = ", ".join(v.tested for v in SUPPORTED)
    closest = min(SUPPORTED, key=lambda v: len(_changes(version, now, v)))
    first = f"vLLM {version} was not tested; tested: {tested}"
    return [first, *_changes(version, now, closest)]


def _changes(version: str, now: tuple[str, ...], tested: Version) -> list[str]:
    """How fingerprints differ from a tested version's, a line each."""
    return [
        f"vLLM {version}: {name} is "
        + ("missing" if found == "missing" else f"not what it was in {tested.tested}")
        for name, found, then in zip(LEANED_ON, now, tested.fingerprints, strict=True)
        if found != then
    ]


def _plain(found: Any) -> Callable[..., Any]:
    """The function behind a static or class method."""
    plain: Callable[..., Any] = getattr(found, "__func__", found)
    return plain
