"""The loads that every engine runs, and the conversation with the one who times them.

A worker prints `ready`, then answers each line with tokens per second, and per second of its CPU
time:

    decode N        N sequences with short prompts
    context N T     N sequences that stand at T tokens or so when the clock starts
    prefill         8 prompts of about 690 tokens, one new token each

Standard library only: workers run in environments of their own.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

NEW_TOKENS = 64
PREFILL_PROMPTS = 8
WORDS_PER_TOKEN = 200 / 690


def decode_prompts(turn: int, count: int) -> list[str]:
    """Short prompts that differ, in every turn."""
    about = "and why it matters to people who count"
    return [f"Write a story about the number {turn}.{i} {about}." for i in range(count)]


def long_prompts(turn: int, count: int, tokens: int) -> list[str]:
    """Prompts of about so many tokens that share no prefix, in no turn."""
    words = " ".join(f"word{i}" for i in range(round(tokens * WORDS_PER_TOKEN)))
    return [f"{turn}.{j} {words}" for j in range(count)]


def own_output() -> TextIO:
    """Standard output for answers alone: what libraries print to it goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def serve(
    generate: Callable[[list[str], int], object],
    count_tokens: Callable[[str], int],
    out: TextIO | None = None,
) -> None:
    """Answer loads with `generate(prompts, new_tokens)` until standard input ends.

    count_tokens: of a prompt, for prefill rates. out: of `own_output`, where an engine prints while
    it is made. Engines keep the prefix of what they have just
    computed: that is how sequences get to their context before the clock starts.
    """
    out = out or own_output()
    generate(decode_prompts(0, 2), 4)
    print("ready", file=out, flush=True)
    for turn, line in enumerate(sys.stdin, 1):
        what, *numbers = line.split()
        if what == "prefill":
            prompts, new = long_prompts(turn, PREFILL_PROMPTS, 690), 1
        else:
            count, new = int(numbers[0]), NEW_TOKENS
            if what == "context":
                prompts = long_prompts(turn, count, int(numbers[1]))
                generate(prompts, 1)
            else:
                prompts = decode_prompts(turn, count)
        begin, cpu = time.perf_counter(), time.process_time()
        generate(prompts, new)
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        # Counted only now: an engine may have to compute a prompt to count its tokens, and keep it.
        tokens = sum(map(count_tokens, prompts)) if what == "prefill" else new * len(prompts)
        print(tokens / wall_s, tokens / cpu_s, file=out, flush=True)
