"""What runs next: scheduler, engine loops and worker handles. Torch-free.
Owns queues, row bookkeeping, budgets and the step; does not know tensors, devices or HTTP.
Import from ``scheduler``, ``engine`` and ``workers``."""
