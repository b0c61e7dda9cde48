"""Every exception Headway raises on purpose.

HeadwayError
├── InvalidRequestError        the caller's request is wrong (HTTP 400)
│   └── NeverFitsError         larger than the KV pool or the model length
├── ModelError                 a model file is truncated, hostile or unsupported
│   └── DownloadError          a model could not be fetched or does not match its checksum
├── ConfigError                a setting is wrong (exit 2 on the command line)
├── OverloadedError            a queue limit is reached (HTTP 429)
├── StorageFullError           the disk or the data quota is full (HTTP 507)
├── NotFoundError              there is no file or job of that id (HTTP 404)
├── ConflictError              what is asked for doesn't go with the state of things (HTTP 409)
├── EngineStoppedError         the engine is draining or has failed (HTTP 503)
└── ExecutorError              a step failed in the executor
"""


class HeadwayError(Exception):
    """Base of all errors raised on purpose; `str(error)` is one line for a person."""


class InvalidRequestError(HeadwayError):
    """A request that can't be served as written.

    `param` names the offending field, for OpenAI's error body; empty where none applies.
    """

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class NeverFitsError(InvalidRequestError):
    """The prompt needs more KV blocks than the pool has, or more tokens than the model takes."""


class ModelError(HeadwayError):
    """A model file that can't be used; the message is one line that names the reason."""


class DownloadError(ModelError):
    """A model that could not be fetched, or whose checksum is wrong."""


class ConfigError(HeadwayError):
    """A setting outside its range, or settings that exclude each other."""


class OverloadedError(HeadwayError):
    """A queue limit is reached; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StorageFullError(HeadwayError):
    """The disk or the data quota is full; nothing of what was being stored is kept."""


class NotFoundError(HeadwayError):
    """This tenant has no file or job of that id."""


class ConflictError(HeadwayError):
    """A file or job is in a state that what was asked for doesn't go with."""


class EngineStoppedError(HeadwayError):
    """The engine no longer takes requests, or ended one because it stopped."""


class ExecutorError(HeadwayError):
    """A step failed as a whole in the executor; the scheduler reclaims its blocks."""
