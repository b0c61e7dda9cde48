"""From the command line's settings to a loaded model and its engine."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from headway.cli.serve_options import ENGINE_OPTIONS
from headway.cli.settings import Places, namespace, resolve
from headway.config import LimitsConfig
from headway.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from headway.assembly import EngineOptions
    from headway.engine.engine import Engine
    from headway.engine.options import LoopOptions
    from headway.engine.types import Observer
    from headway.models.loader import LoadedModel

_LOOK_S = 0.05
_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model under its name, and an engine for it that has not been started."""

    name: str
    model: "LoadedModel"
    engine: "Engine"

    def describe(self) -> Iterator[str]:
        """The model and the sizes in words, a line each."""
        from headway.assembly import describe

        config, capacity = self.model.weights.config, self.engine.capacity
        megabytes = sum(
            {id(t): t.data.nbytes for t in self.model.weights.tensors.values()}.values()
        )
        yield (
            f"Model: {self.name} ({config.architecture}, {config.layers} layers, "
            f"{megabytes / 1e6:,.0f} MB of weights)"
        )
        yield describe(capacity)
        yield f"Seats: {capacity.max_seqs:,}. A step: at most {capacity.max_step_tokens:,} tokens."


def flag_options(flags: argparse.Namespace) -> "EngineOptions":
    """The engine's options of a command that takes them from its command line alone. Raises
    ConfigError."""
    return engine_options(namespace(resolve(ENGINE_OPTIONS, Places(vars(flags), {}, None))))


def engine_options(settings: argparse.Namespace) -> "EngineOptions":
    """The engine's options, from resolved settings. Raises ConfigError."""
    from headway.assembly import Backend, EngineOptions, Sizes, lane_mode, weight_cache
    from headway.core.budget import Targets

    sizes = Sizes(
        kv_blocks=settings.kv_blocks,
        host_blocks=settings.host_blocks,
        block_size=settings.block_size,
        max_seqs=settings.max_seqs,
        max_step_tokens=settings.max_step_tokens,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
    )
    targets = Targets(settings.itl_target or 0.0, settings.ttft_target or 0.0)
    return EngineOptions(
        sizes,
        settings.policy,
        targets,
        lanes=lane_mode(settings.lanes),
        weight_cache=weight_cache(settings.weight_cache),
        backend=Backend(
            settings.executor,
            settings.device,
            settings.dtype,
            settings.attention,
            settings.graphs,
        ),
    )


def loop_options(limits: LimitsConfig) -> "LoopOptions":
    """The engine's limits of what may wait."""
    from headway.engine.options import LoopOptions, QueueLimits

    figures = (limits.queue_requests, limits.queue_tokens)
    queues, tokens = (
        QueueLimits(*(int(figure) for figure in by_class.given().values())) for by_class in figures
    )
    return LoopOptions(queues=queues, queue_tokens=tokens)


def load(
    model: str | None,
    options: "EngineOptions",
    observers: "Sequence[Observer]" = (),
    chat_template: str | None = None,
) -> Loaded:
    """Find (or pull) and load a model, and build its engine; notices go to standard error.

    chat_template: the source of one to use instead of the model's own.
    Raises ModelError, ConfigError.
    """
    from headway.assembly import build_engine
    from headway.models.loader import load_model
    from headway.models.pull import resolve_model

    source = resolve_model(model)
    loaded = load_model(source.path, options.backend.quantize)
    if chat_template is not None:
        loaded = _with_template(loaded, chat_template)
    for notice in (*options.backend.notices, *loaded.notices):
        print(f"headway: {notice}", file=sys.stderr)
    return Loaded(source.name, loaded, build_engine(loaded, options, observers))


class StillLoadingError(KeyboardInterrupt):
    """Ctrl-C, while another thread loads a model."""


def load_beside(
    loading: Callable[[], Loaded], other: Callable[[], object], interrupted: Event
) -> Loaded:
    """What `loading` gives, in a thread of its own, while `other` runs in this one.

    Raises what either does; KeyboardInterrupt once `interrupted` is set, or StillLoadingError where
    the thread goes on.
    """
    loaded: Future[Loaded] = Future()

    def work() -> None:
        try:
            loaded.set_result(loading())
        except BaseException as error:
            loaded.set_exception(error)

    Thread(target=work, name="loader", daemon=True).start()
    other()
    while not interrupted.is_set() and not loaded.done():
        wait([loaded], _LOOK_S)
    if interrupted.is_set():
        raise KeyboardInterrupt if loaded.done() else StillLoadingError
    return loaded.result()


def read_template(path: Path) -> str:
    """The text of a chat template's file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(_TEMPLATE_BYTES + 1)
        if len(text) > _TEMPLATE_BYTES:
            raise ConfigError(f"--chat-template {path} is larger than {_TEMPLATE_BYTES:,} bytes")
        return text.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--chat-template {path} can't be read: {reason}") from error


def _with_template(loaded: "LoadedModel", source: str) -> "LoadedModel":
    try:
        return loaded.with_template(source)
    except ModelError as error:
        raise ConfigError(f"--chat-template: {error}") from error
