"""Chat templates that stand in for a file's own, where its own makes the model answer worse."""

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_INSTEAD = {
    # SmolLM2-135M-Instruct, Q4_1, as served by default. Its own template puts a system message in
    # front of every conversation that has none, and with it the 4-bit weights ramble in French on
    # "What is the capital of France?"; without it they answer (docs/adr/0008).
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53": _CHATML,
}


def template_for(fingerprint: str, own: str | None) -> str | None:
    """The template to use for the file with this SHA-256: its own, unless a better one is known."""
    return _INSTEAD.get(fingerprint, own)
