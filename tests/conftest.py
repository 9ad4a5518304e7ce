"""What every test runs under."""

from hypothesis import settings

# A busy machine may be slow at any moment: how long an example takes says nothing.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
