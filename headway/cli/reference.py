"""docs/configuration.md, made from the declaration of the settings."""

from collections.abc import Iterator
from itertools import groupby

from headway.cli.serve_options import SERVE_OPTIONS
from headway.cli.settings import CONFIG_VARIABLE, Option

_HEAD = f"""\
# Configuration

<!-- Made by `headway config reference`; change headway/cli/serve_options.py instead. -->

The settings of `headway serve`. Each can be given in three places; the first that has it decides:

1. the command line: `--kv-blocks 4096`,
2. the environment: `HEADWAY_KV_BLOCKS=4096`,
3. a TOML file, named by `--config FILE` or `{CONFIG_VARIABLE}`: `kv-blocks = 4096`.

A name that is no setting is an error, in the environment (`HEADWAY_…`) and in the file alike; what
Kubernetes sets for a service called `headway` is passed over. `headway config show` takes the
options of `headway serve` and prints every value and where it comes from, as a file that
`--config` takes. Values by class are written `realtime=10,batch=100` or as a table,
`{{realtime = 10, batch = 100}}`; lists as `a,b` or `["a", "b"]`.

```toml
# headway.toml
model = "/models/qwen3-4b-q4_0.gguf"
served-model-name = ["qwen3", "default"]
host = "0.0.0.0"
keys-file = "/etc/headway/keys.json"
```

[Operating a server](operating.md) says what to set when.
"""


def reference() -> str:
    """The page."""
    return _HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    for group, options in groupby(SERVE_OPTIONS, lambda option: option.group):
        yield f"\n## {group[0].upper()}{group[1:]}\n\n"
        yield "| setting | value | default | |\n|---|---|---|---|\n"
        yield from (_row(option) for option in options)


def _row(option: Option) -> str:
    value = option.kind.metavar.replace("|", "\\|")
    default = "" if option.default is None else f"`{option.default}`"
    name = f"`{option.name}`"
    if option.positional:
        name += f" (on the command line: `{option.flag}`)"
    return f"| {name} | {value} | {default} | {option.help} |\n"
