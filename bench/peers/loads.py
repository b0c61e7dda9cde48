"""The loads that every engine runs, and the conversation with the one who times them.

A worker prints `ready`, then answers each line `decode N` or `prefill` with tokens per second.
Standard library only: workers run in environments of their own.
"""

import os
import sys
import time

NEW_TOKENS = 64
PREFILL_PROMPTS = 8


def decode_prompts(count):
    """Short prompts that differ."""
    about = "and why it matters to people who count"
    return [f"Write a story about the number {i} {about}." for i in range(count)]


def prefill_prompts(turn):
    """Prompts of about 690 tokens that share no prefix, in no turn."""
    words = " ".join(f"word{i}" for i in range(200))
    return [f"{turn}.{j} {words}" for j in range(PREFILL_PROMPTS)]


def serve(generate, count_tokens):
    """Answer loads with `generate(prompts, new_tokens)` until standard input ends.

    count_tokens: of a prompt, for prefill rates.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard output
    generate(decode_prompts(2), 4)
    print("ready", file=out, flush=True)
    for turn, line in enumerate(sys.stdin):
        what, _, count = line.strip().partition(" ")
        if what == "decode":
            prompts, new = decode_prompts(int(count)), NEW_TOKENS
            tokens = new * len(prompts)
        else:
            prompts, new = prefill_prompts(turn), 1
            tokens = sum(map(count_tokens, prompts))
        begin = time.perf_counter()
        generate(prompts, new)
        print(tokens / (time.perf_counter() - begin), file=out, flush=True)
