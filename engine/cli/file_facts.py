"""What the header of a GGUF says, for files that are not loaded as models: adapters, projectors, vocabularies."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.llama.gguf.gguf import kind_of
from engine.llama.gguf.gguf_header import Header, file_type_name, read_header, tensor_type_name
from engine.support.display import short
from engine.support.report import RowReport


@dataclass(frozen=True, slots=True)
class FileFacts(RowReport):
    """A file's kind, name and architecture as its header states them, why it cannot be loaded, its tensors' number,
    elements and types, its size in bytes, and its keys; of a long array only the length is known."""

    path: str
    kind: str
    name: str
    architecture: str
    quantization: str
    refused: str
    tensors: int
    elements: int
    types: dict[str, int]
    size_bytes: int
    metadata: dict[str, Any]

    def rows(self) -> Iterator[tuple[str, str]]:
        types = ", ".join(f"{count:,} {name}" for name, count in self.types.items())
        yield "file", f"{self.kind}: {self.name or 'unnamed'} at {self.path}"
        yield "not loaded", self.refused
        yield "architecture", self.architecture or "not stated"
        yield "tensors", f"{self.tensors:,}, {self.elements / 1e6:,.1f} M numbers" + (f" ({types})" if types else "")
        yield "size", " ".join(filter(None, (self.quantization, f"{self.size_bytes / 1e6:,.1f} MB")))
        yield from self._keys()

    def _keys(self) -> Iterator[tuple[str, str]]:
        heading = "keys"
        for key, value in self.metadata.items():
            yield heading, f"{short(key)}: {short(str(value))}"
            heading = ""


def file_facts(path: Path, refused: str) -> FileFacts:
    """Returns what a header says of a file that is refused for this reason. Raises ModelLoadError if it is not GGUF."""
    header = read_header(path)
    types = Counter(tensor_type_name(tensor.type) for tensor in header.tensors)
    return FileFacts(
        path=str(path),
        kind=kind_of(header),
        name=header.text("general.name"),
        architecture=header.text("general.architecture"),
        quantization=file_type_name(header.integer("general.file_type", -1)) or "",
        refused=refused,
        tensors=len(header.tensors),
        elements=sum(tensor.elements for tensor in header.tensors),
        types=dict(types.most_common()),
        size_bytes=header.file_size,
        metadata={key: _value(header, key) for key in header.keys_under("")},
    )


def _value(header: Header, key: str) -> Any:
    entry = header.entry(key)
    if entry is None or (entry.is_array and (entry.value is None or header.count(key) > 16)):
        return f"{header.count(key):,} values"
    return list(entry.value) if isinstance(entry.value, tuple) else entry.value
