"""OpenAI's client for JavaScript over the whole surface: `surface.test.mjs`, run by Node."""

import json
import os
import subprocess
from pathlib import Path

from tests.server.surface import surface


def test_the_official_client(tmp_path: Path) -> None:
    with surface(tmp_path) as urls:
        run = subprocess.run(
            ["node", "--test", "--test-reporter=tap", "surface.test.mjs"],
            cwd=Path(__file__).parent,
            env={**os.environ, "HEADWAY_SERVERS": json.dumps(urls)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# pass 10" in run.stdout
