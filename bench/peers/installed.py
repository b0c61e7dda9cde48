"""What distributions and all that they require take on disk, and their versions.

    PYTHON bench/peers/installed.py xllamacpp …

Run by the interpreter of the environment that is asked about; prints JSON. Counted are the files
that were installed, without Python's bytecode, which comes with use; of a distribution installed in
place, its sources. What is in the environment for other reasons (pip, tests) doesn't count.
"""

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?")
EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def closure(names):
    """Distributions by normalised name: those named, and what they require of what is installed."""
    found, waiting, seen = {}, [(name, ()) for name in names], set()
    while waiting:
        name, extras = waiting.pop()
        name = normal(name)
        if (name, tuple(extras)) in seen:
            continue
        seen.add((name, tuple(extras)))
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform or Python, or left out on purpose
        found[name] = one
        for requirement in one.requires or ():
            wanted, its_extras, _, marker = REQUIREMENT.match(requirement).groups()
            extra = EXTRA.search(marker or "")
            if extra is None or normal(extra[1]) in extras:
                waiting.append(
                    (wanted, tuple(map(normal, re.findall(r"[\w.-]+", its_extras or ""))))
                )
    return found


def normal(name):
    """As PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def files(one: Distribution):
    """Sizes by path below the place of packages."""
    sizes = {}
    for file in one.files or ():
        path = Path(one.locate_file(file))
        if "__pycache__" not in file.parts and path.is_file():
            sizes[str(file)] = path.stat().st_size
    if '"editable"' in (one.read_text("direct_url.json") or ""):
        sizes.update(sources(normal(one.name).replace("-", "_")))
    return sizes


def sources(package):
    """Files of a package that lies in its source tree."""
    spec = find_spec(package)
    sizes = {}
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in Path(folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                place = Path(package) / path.relative_to(folder)
                sizes[str(place)] = path.stat().st_size
    return sizes


def main():
    """Print the sum."""
    missing = [name for name in sys.argv[1:] if normal(name) not in closure([name])]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    found = closure(sys.argv[1:])
    size = sum(sum(files(one).values()) for one in found.values())
    versions = {name: one.version for name, one in sorted(found.items())}
    print(json.dumps({"bytes": size, "versions": versions}))


if __name__ == "__main__":
    main()
