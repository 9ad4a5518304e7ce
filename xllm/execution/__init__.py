"""The execution plane: turns a step plan into tokens on one device.

Owns the persistent rows, input building, the model executor with its runners, and sampling.
Knows nothing of queues, policies, text or HTTP; it meets the scheduler only in ``core.messages``.
"""
