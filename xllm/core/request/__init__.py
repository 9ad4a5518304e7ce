"""The nouns of a request: what is asked, how to sample, why it ended. Torch-free values."""
