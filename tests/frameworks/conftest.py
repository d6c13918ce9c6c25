"""No test of this room reaches a network. The room runs in the environments of `.ci/ecosystem`; elsewhere what is not
installed is skipped."""

from no_network import no_sockets

__all__ = ["no_sockets"]
