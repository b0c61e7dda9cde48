"""`headway config`: what a server's settings are and where they come from."""

import argparse
import os

from headway.cli.reference import reference
from headway.cli.serve_config import batch_config, serve_config
from headway.cli.serve_options import SERVE_OPTIONS
from headway.cli.settings import namespace, places, resolve, shown


def run(settings: argparse.Namespace) -> int:
    """Print settings, or their reference page. Raises ConfigError for a wrong one."""
    if settings.verb == "reference":
        print(reference(), end="")
        return 0
    found = resolve(SERVE_OPTIONS, places(settings, os.environ))
    values = namespace(found)
    serve_config(values)
    batch_config(values, os.environ)
    print("\n".join(shown(found)))
    return 0
