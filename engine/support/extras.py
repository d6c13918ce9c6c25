"""How an optional dependency is installed: the one place that says so, for every message."""


def install(extra: str) -> str:
    """Returns the command that installs an extra of pyproject.toml. The package is on no index yet: it is installed
    from a clone of the repository, and so are its extras."""
    return f"pip install '.[{extra}]' in your clone of llama-engine"
