"""Every error the engine raises on purpose.

Knows: the closed set of error classes a caller can catch. Does not know: where they are raised. The rule for messages is
that each says what was wrong (with the numbers) and what to do next; bad *model output* never raises, it arrives as data
on the events (see `engine.events.ToolCallEnd`).
"""


class EngineError(Exception):
    """Base of every error raised on purpose by this package."""


class ModelLoadError(EngineError):
    """A model file is missing, damaged, not a chat model, or cannot be run on this machine."""


class ContextOverflowError(EngineError):
    """A prompt, or a context asked for, does not fit: into the context length, or into memory."""


class TemplateError(EngineError):
    """A chat template is broken or hostile, or it rejects the messages it was given."""


class RequestError(EngineError):
    """The caller's messages, tools or options are not valid."""


class FamilyError(EngineError):
    """A family table (models.toml, or a user's own) is unknown, incomplete or contradicts itself."""


class DecodeError(EngineError):
    """llama.cpp could not evaluate a batch; the request it belonged to failed."""
