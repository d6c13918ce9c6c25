"""A Hub on the loopback device, to which huggingface_hub's settings point, with an empty cache."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from fakes import hub_server
from huggingface_hub import constants

from engine.hub import download


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[hub_server.Hub]:
    """The server; waits between attempts are short, and no token of this machine is used."""
    with hub_server.running() as server:
        settings = {
            **hub_server.settings(server, tmp_path),
            "HF_HUB_ETAG_TIMEOUT": 5,
            "HF_HUB_DOWNLOAD_TIMEOUT": 5,
        }
        for name, value in settings.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
        monkeypatch.setattr(download, "WAITS", (0.01, 0.01, 0.01))
        huggingface_hub.close_session()
        yield server
        huggingface_hub.close_session()
