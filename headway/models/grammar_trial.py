"""Grammars compiled where they can do no harm, before they are compiled where they are used.

llguidance takes any time for some sources and its thread's whole stack for others, which ends the
process. So each is first compiled in a process of its own, with a limit to its CPU time, memory and
stack.

    parent                            child
      │ vocabulary (pickle, once) ────► │
      │ [source, param] (JSON, a line)─►│ compiles it
      │◄─── its refusal, or "" (a line) │
"""

import json
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from headway.errors import InvalidRequestError
from headway.models.grammars import Vocabulary, compiled, tokenizer_of

CPU_S = 2.0
"""Most CPU time for one grammar. A schema of a thousand properties takes a tenth of that."""

_WALL_S = 60.0
"""After which a child is given up that has not even got its CPU time."""

_MEMORY_BYTES = 1 << 30
"""That a child may take beside what it has at its start."""

_UNLIMITED_STACK_BYTES = 2 << 20
"""Stack of a thread where the system sets no limit: glibc's own."""


class GrammarTrial:
    """Implements `grammars.Trial`. Starts its process at the first use, and anew after it ended;
    one grammar at a time, from any thread."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab_size: int,
        stop_ids: Collection[int],
        cpu_s: float = CPU_S,
    ) -> None:
        """vocab_size, stop_ids: as for `GrammarCompiler`."""
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._stop_ids = sorted(stop_ids)
        self._cpu_s = cpu_s
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def check(self, source: str, param: str) -> None:
        """Raises InvalidRequestError, about the field `param`, for what can't be compiled, or not
        within the limits."""
        with self._lock:
            for _ in range(2):  # a child may have been ended from outside meanwhile
                answer = self._ask(json.dumps([source, param]).encode() + b"\n")
                if answer is not None:
                    refusal = json.loads(answer)
                    break
                refusal = self._epitaph(param)
                if refusal:
                    break
        if refusal:
            raise InvalidRequestError(refusal, param)

    def close(self) -> None:
        """End the process, if there is one, in the middle of a grammar too."""
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def _ask(self, line: bytes) -> bytes | None:
        """The child's answer; None where it gave none."""
        try:
            child = self._child or self._started()
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(line)
            child.stdin.flush()
        except BrokenPipeError:
            return None
        if not select.select([child.stdout], [], [], _WALL_S)[0]:
            child.send_signal(signal.SIGPROF)
            return None
        return child.stdout.readline() or None

    def _epitaph(self, param: str) -> str:
        """What a child that gave no answer says about the grammar; "" where it may have been
        somebody else who ended it."""
        code = self._end()
        if code == -signal.SIGPROF:
            return f"'{param}' takes more than {self._cpu_s:g} s of CPU time to compile."
        return "" if code == -signal.SIGTERM else f"'{param}' is too complex to compile."

    def _started(self) -> "subprocess.Popen[bytes]":
        self._child = child = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._cpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is not for it
            cwd=Path(__file__).parents[2],
        )
        tokens = [self._vocabulary.token_bytes(token) for token in range(self._vocab_size)]
        special = [t for t in range(self._vocab_size) if self._vocabulary.is_special(t)]
        assert child.stdin is not None
        pickle.dump((tokens, special, self._stop_ids), child.stdin)
        return child

    def _end(self) -> int:
        """End the child; how it ended, or would have."""
        child, self._child = self._child, None
        if child is None:
            return 0
        assert child.stdin is not None and child.stdout is not None
        with suppress(BrokenPipeError):  # of what could not be sent
            child.stdin.close()  # at which it ends
        child.stdout.close()
        return child.wait()


class _Plain:
    """A vocabulary that was sent."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int]) -> None:
        self._tokens = tokens
        self._special = frozenset(special)

    def token_id(self, name: str) -> int | None:
        return None

    def is_special(self, token: int) -> bool:
        return token in self._special

    def token_bytes(self, token: int) -> bytes:
        return self._tokens[token]

    def encode(self, text: str, add_special: bool, parse_special: bool) -> Sequence[int]:
        return ()


def _serve(requests: BinaryIO, answers: BinaryIO, cpu_s: float) -> None:
    """The child: answer until there are no more requests."""
    tokens, special, stop_ids = pickle.load(requests)
    tokenizer = tokenizer_of(_Plain(tokens, special), len(tokens), stop_ids)
    _bound_memory()
    for line in requests:
        source, param = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # ends the process, whatever it is at
        refusal = ""
        try:
            compiled(tokenizer, source, param)
        except InvalidRequestError as error:
            refusal = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(refusal).encode() + b"\n")
        answers.flush()


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _stack_bytes() -> int:
    """Half of what threads have, here and in the parent: who passes does not come near its end."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return (_UNLIMITED_STACK_BYTES if limit == resource.RLIM_INFINITY else limit) // 2


def main() -> None:
    """The child's process."""
    threading.stack_size(_stack_bytes())
    arguments = sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1])
    thread = threading.Thread(target=_serve, args=arguments)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
