"""engine.hub.api: an HF_ENDPOINT that is no address is named."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
from engine import Engine, ModelLoadError
try:
    Engine.load("owner/repo:Q4_K_M")
except ModelLoadError as error:
    print(error)
"""


@pytest.mark.parametrize("address", ["http://[", "https://[::1", "http://a]b["])
def test_an_endpoint_that_is_no_address(address: str) -> None:
    environment = {**os.environ, "HF_ENDPOINT": address}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"HF_ENDPOINT={address!r} is not an address")
