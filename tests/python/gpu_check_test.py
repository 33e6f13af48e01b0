"""tests/gpu/check, for machines with a GPU, on the fake driver."""

from __future__ import annotations

import json
import subprocess
import sys

from conftest import EMBCACHED, ROOT
from fake_cuda import FakeCuda


def test_the_check_passes_on_the_fake_driver(fake: FakeCuda) -> None:
    command = [sys.executable, str(ROOT / "tests/gpu/check"), "--fake", str(fake.library.parent)]
    done = subprocess.run(
        [*command, "--bin", EMBCACHED.rpartition("/")[0]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["result"] == "PASS"
    assert summary["figures"]["get_us"] > 0
