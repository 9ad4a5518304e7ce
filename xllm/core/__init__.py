"""The nouns and wires every plane shares: config, requests, messages, channels, metrics.

Owns no behaviour of a plane and imports no torch. Everything above may import it; it imports
nothing above.
"""
