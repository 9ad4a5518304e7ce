"""KV cache: arithmetic (``layout``), block accounting (``blocks``), sharing (``prefix``), tensors
(``storage``). Owns who holds which block; does not know models, requests or queues.
Import from the sub-packages: everything but ``storage`` is free of torch."""
