"""The callback of who wants to hear nothing."""


def nothing(*_: object) -> None:
    """Do nothing, whatever it is called with."""
