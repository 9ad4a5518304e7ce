"""``GET``, ``HEAD`` and ``POST /ping``: the health probe of hosted platforms."""

from __future__ import annotations

from xllm.entrypoints.http.router import ApiRouter
from xllm.entrypoints.http.routes.health import health

router = ApiRouter()
router.add("/ping", health, methods=["GET", "HEAD", "POST"])
