"""The web application: every route of the catalogue behind the same guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from xllm.core.config import ServerConfig
from xllm.core.utils.registry import Registry
from xllm.entrypoints.http.activity import Activity, ActivityMiddleware
from xllm.entrypoints.http.caller import CallerMiddleware
from xllm.entrypoints.http.errors import ErrorBoundary, install_handlers
from xllm.entrypoints.http.security import ApiKeys, cors_options

if TYPE_CHECKING:
    from xllm.assembly.families.llm import ServingStack

ROUTES = Registry("xllm.entrypoints.http.routes", "route")


def create_app(
    stack: ServingStack, config: ServerConfig, activity: Activity, *, traced: bool = False
) -> Starlette:
    """Build the application.

    A route module has a ``router`` and, when it belongs to administration, ``ADMIN = True``: such
    a module is served only with ``enable_admin``. One with a function ``served`` decides itself
    from the configuration.

    Args:
        stack: what answers; it may still be loading.
        config: keys, origins and limits.
        activity: counts the requests being answered.
        traced: whether requests note their caller for traces.
    """
    app = Starlette()
    app.router.redirect_slashes = False
    app.state.stack = stack
    app.state.config = config
    app.state.activity = activity
    app.state.api_keys = ApiKeys(config.api_key)
    app.state.routes = routes = []
    for name in ROUTES.names():
        module = ROUTES.load(name)
        allowed = config.enable_admin or not getattr(module, "ADMIN", False)
        served = getattr(module, "served", None)
        if allowed and (served is None or served(config)):
            routes += module.router.routes
    app.router.routes += routes
    install_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(ErrorBoundary)
    if traced:
        app.add_middleware(CallerMiddleware)
    if config.allowed_origins:
        app.add_middleware(CORSMiddleware, **cors_options(config.allowed_origins))
    app.add_middleware(ActivityMiddleware, activity=activity, root_path=config.root_path)
    return app
