"""Streams in notebooks: rendered live in a cell; and what a loading cell that is run again should tell."""


def __getattr__(name: str) -> object:
    if name == "chat":
        raise AttributeError(
            "engine.notebook.chat is gone: give mo.ui.chat a function that returns `await llm.achat(...)`."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
