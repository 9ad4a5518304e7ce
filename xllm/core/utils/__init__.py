"""Small helpers without a domain: the lazy registry, suggestions, arrays, the GGUF container."""
