"""Grammars that mean harm."""

CHAIN = "\n".join(
    ["start: r0", *(f'r{i}: r{i + 1} | "a" r{i + 1}' for i in range(8000)), 'r8000: "z"']
)
"""Takes a thread's whole stack, and with it the process."""

PAIRS = {
    "type": "object",
    "patternProperties": {f"^{i:04}.*": {"type": "string"} for i in range(2000)},
}
"""A schema of which each pattern is compared with each other: many seconds."""
