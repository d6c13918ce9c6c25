"""The complete engine without a GGUF, for tests: a scripted engine and backend, and a byte vocabulary."""

from engine.testing.byte_vocab import ByteVocab
from engine.testing.scripted import (
    Reply,
    ReplyPart,
    ScriptedBackend,
    ScriptedCall,
    ScriptedEngine,
    ScriptedSampler,
    ScriptedVectors,
    call,
)

__all__ = [
    "ByteVocab",
    "Reply",
    "ReplyPart",
    "ScriptedBackend",
    "ScriptedCall",
    "ScriptedEngine",
    "ScriptedSampler",
    "ScriptedVectors",
    "call",
]
