"""Discovery: I/O in, model out. One file a source; ``fabricd.probe.registry`` lists them all."""
