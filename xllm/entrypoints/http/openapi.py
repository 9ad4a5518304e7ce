"""The OpenAPI document, made of the routes and the schemas that decode their bodies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from xllm.entrypoints.http.router import ApiRoute
from xllm.entrypoints.http.security import PUBLIC_PATHS
from xllm.frontend.protocol.errors import ErrorResponse
from xllm.version import __version__

_REF = "#/components/schemas/{name}"
_JSON = "application/json"


def openapi_document(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """OpenAPI 3.1 of an application's routes.

    Answers are described by their status and media type only: every error has the envelope.
    """
    served = [route for route in routes if route.include_in_schema]
    bodies = [route.body for route in served if route.body is not None]
    (*body_schemas, error_schema), components = msgspec.json.schema_components(
        [*bodies, ErrorResponse], ref_template=_REF
    )
    schema_of = dict(zip(bodies, body_schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in served:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(route, path, method, error_schema)
            if route.body is not None:
                operation["requestBody"] = {
                    "required": True,
                    "content": {_JSON: {"schema": schema_of[route.body]}},
                }
            paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "xLLM", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(route: ApiRoute, path: str, method: str, error_schema: Any) -> dict[str, Any]:
    name = re.sub(r"\W+", "_", path).strip("_")
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}_{name}",
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", path)
        ],
        "responses": {
            "200": {"description": "The answer; a stream of events where one was asked for."},
            "default": {
                "description": "Why not.",
                "content": {_JSON: {"schema": error_schema}},
            },
        },
    }
    if route.path in PUBLIC_PATHS:
        operation["security"] = []
    return operation
