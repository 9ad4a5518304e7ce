"""The document names every route, and what each takes."""

import inspect
from typing import Any

from fake_stack import FakeStack, app_of, call

from xllm.entrypoints.http.router import ApiRoute

KEY = "sk-correct"


def document() -> tuple[list[ApiRoute], dict[str, Any]]:
    app = app_of(FakeStack(), enable_admin=True, enable_web=False)  # pages are no API
    response = call(app, "GET", "/openapi.json")
    assert response.status_code == 200
    return app.state.routes, response.json()


def test_every_route_is_named_and_every_body_has_a_schema() -> None:
    routes, found = document()
    operations = {
        (method, path): operation
        for path, item in found["paths"].items()
        for method, operation in item.items()
    }
    assert len(operations) == sum(len(route.methods - {"HEAD"}) for route in routes)
    assert len({operation["operationId"] for operation in operations.values()}) == len(operations)
    for route in routes:
        reads_body = "exchange(" in inspect.getsource(route.endpoint)
        assert reads_body == (route.body is not None), route.path


def test_schemas_are_those_that_decode_bodies() -> None:
    _, found = document()
    body = found["paths"]["/tokenize"]["post"]["requestBody"]["content"]["application/json"]
    name = body["schema"]["$ref"].removeprefix("#/components/schemas/")
    assert {"prompt", "messages"} <= set(found["components"]["schemas"][name]["properties"])


def test_the_document_needs_the_key() -> None:
    app = app_of(FakeStack(), api_key=[KEY])
    assert call(app, "GET", "/openapi.json").status_code == 401
