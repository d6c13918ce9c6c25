"""Stores as Ollama and LM Studio write them, for tests."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

IMAGE = "application/vnd.ollama.image."


def blob(store: Path, data: bytes) -> str:
    """Write a blob of Ollama's and return its digest."""
    digest = hashlib.sha256(data).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(data)
    return f"sha256:{digest}"


def layer(kind: str, digest: object, size: object) -> dict[str, object]:
    return {"mediaType": IMAGE + kind, "digest": digest, "size": size}


def manifest(store: Path, name: str, content: Mapping[str, Any] | bytes) -> Path:
    """Write a manifest; `name` is host/namespace/model/tag."""
    path = store / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def ollama(store: Path, name: str, *layers: Mapping[str, object], **parts: bytes) -> Path:
    """Write a model of Ollama's with these parts (model=, projector=, template=), and return its manifest."""
    made = [layer(kind, blob(store, data), len(data)) for kind, data in parts.items()]
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:" + "0" * 64, "size": 9}
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    return manifest(store, name, {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [*made, *layers]})
