"""Run tests, or a script, with the native module of another build: see scripts/sanitize."""

import importlib.util
import runpy
import sys
from pathlib import Path

import headway


def main(build: Path, arguments: list[str]) -> int:
    """Exit status of pytest with the arguments, or of the script that the first one names."""
    (file,) = build.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("headway._native", file)
    if spec is None or spec.loader is None:
        raise ImportError(file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    vars(headway)["_native"] = module
    if arguments[0].startswith("bench/"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    import pytest

    return int(pytest.main([*arguments, "-q", "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
