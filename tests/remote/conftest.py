"""No test of this room reaches a network."""

from no_network import no_sockets

__all__ = ["no_sockets"]
