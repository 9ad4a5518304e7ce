"""One file per endpoint: a ``router`` and one call into a service. Found by file name."""
