"""`headway pull`."""

import argparse
from pathlib import Path

from headway.errors import ConfigError
from headway.models.hub import HUB_PREFIX, pull_hub
from headway.models.pull import SMOLLM2, pull


def run(settings: argparse.Namespace) -> int:
    """Fetch a model and print where it is. Raises ConfigError, DownloadError."""
    model, from_file = settings.model, settings.from_file
    if model == SMOLLM2.name:
        print(pull(from_file=None if from_file is None else Path(from_file)))
    elif model.startswith(HUB_PREFIX):
        if from_file is not None:
            raise ConfigError(f"--from goes with {SMOLLM2.name} only")
        print(pull_hub(model))
    else:
        raise ConfigError(
            f"can't pull {model!r}: known are {SMOLLM2.name} and {HUB_PREFIX}ORG/REPO[:FILE]"
        )
    return 0
