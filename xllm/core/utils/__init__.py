"""Small helpers without a domain: the lazy registry and array encoding."""
