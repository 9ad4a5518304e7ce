"""Small helpers without a domain: the lazy registry, array encoding, the GGUF container."""
