"""What a Batch job is made of. Times are Unix seconds, whole ones, as OpenAI's API has them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

INPUT_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"
DAY_S = 86_400
DEFAULT_LIFE_S = 30 * DAY_S
"""How long files are kept that don't say, inputs and outputs."""


class Status(Enum):
    """Where a job is in its life; the words are OpenAI's."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        """Whether the job still has a way to go."""
        return bool(NEXT[self])


NEXT: Mapping[Status, frozenset[Status]] = {
    Status.VALIDATING: frozenset({Status.FAILED, Status.IN_PROGRESS, Status.CANCELLING}),
    Status.IN_PROGRESS: frozenset({Status.FINALIZING, Status.EXPIRED, Status.CANCELLING}),
    Status.FINALIZING: frozenset({Status.COMPLETED}),
    Status.CANCELLING: frozenset({Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
}
"""The one transition table: status → those that may follow it."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file's entry. expires_s: when it is deleted; None keeps it."""

    id: str
    tenant: str
    purpose: str
    filename: str
    size_bytes: int
    created_s: int
    expires_s: int | None


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asks for.

    endpoint: path that every line is meant for, `/v1/chat/completions` for example.
    window: completion window as the client wrote it; `window_s` in seconds.
    output_life_s: how long the output and error files are kept.
    """

    tenant: str
    input_file_id: str
    endpoint: str
    window: str
    window_s: int
    metadata: Mapping[str, str] | None = None
    output_life_s: int = DEFAULT_LIFE_S


@dataclass(frozen=True, slots=True)
class Counts:
    """Lines of a job. `failed` are those in the error file."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line, or, without a line, with a whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """A job's two result files: ids given when the job is created, and whether each was published
    (a file that nothing was written to never is)."""

    output_file_id: str
    error_file_id: str
    has_output: bool = False
    has_errors: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A Batch job's entry.

    expires_s: end of the completion window.
    times: when each status was reached.
    """

    id: str
    order: Order
    status: Status
    created_s: int
    expires_s: int
    results: Results
    times: Mapping[Status, int] = field(default_factory=dict)
    counts: Counts = Counts()
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list: at most `limit` entries that come after the entry with id `after` (from the
    start if ""), the newest first unless `oldest_first`."""

    after: str = ""
    limit: int = 20
    oldest_first: bool = False


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What a line's request was answered with: HTTP status, JSON body, id of the request."""

    status: int
    body: bytes
    request_id: str

    @property
    def passing(self) -> bool:
        """Whether the fault is not the line's and another try may do better."""
        return self.status in (429, 503)

    @property
    def failed(self) -> bool:
        """Whether the fault is the server's, and may or may not be there at another try."""
        return self.status >= 500 and not self.passing


class Answerer(Protocol):
    """Answers single requests as the HTTP endpoints would, in the batch class."""

    @property
    def endpoints(self) -> Collection[str]:
        """Paths that lines may be meant for."""
        ...

    async def answer(self, endpoint: str, body: bytes, tenant: str) -> LineAnswer:
        """The answer to a JSON body; a fault of any kind is an answer too. Cancelling aborts."""
        ...
