"""What every test runs under."""

import os

import torch
from hypothesis import settings

# Without a GPU, Triton runs kernels in its interpreter. It is chosen before any kernel is defined,
# and modules of tests are imported in no particular order.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A busy machine may be slow at any moment: how long an example takes says nothing.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
