"""The process around the application: sockets, signals, probing, and what it tells its supervisor."""

from fabricd.daemon.main import Launch, run

__all__ = ["Launch", "run"]
