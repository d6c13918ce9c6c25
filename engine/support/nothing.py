"""A function for where something must be called and nothing is to be done."""


def nothing(*_: object) -> None:
    """Does nothing."""
