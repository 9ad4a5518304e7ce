"""``GET``, ``HEAD`` and ``POST /ping``: the health probe of hosted platforms."""

from __future__ import annotations

from fastapi import APIRouter

from xllm.entrypoints.http.routes.health import health

router = APIRouter()
router.add_api_route("/ping", health, methods=["GET", "HEAD", "POST"])
