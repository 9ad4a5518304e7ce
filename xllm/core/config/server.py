"""The HTTP server: where it listens, whom it lets in, how much it takes."""

from __future__ import annotations

import dataclasses
import re

from xllm.core.config.option import check_bounds, option

# What every client puts into a header as it is.
_KEY = re.compile(r"[!-~]+")
# What browsers call an origin: no path and no slash at its end.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """Listening, authorisation and request limits."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on.", low=0, high=65535)
    api_key: list[str] = option([], "Key that clients must send as a bearer token; repeatable.")
    allowed_origins: list[str] = option(
        [], "Origins that browsers may call from, as a JSON list; none by default."
    )
    enable_admin: bool = option(False, "Serve the administration routes.")
    enable_web: bool = option(True, "Serve the chat page at / and the dashboard at /dashboard.")
    root_path: str = option("", "Path prefix when served behind a proxy.")
    shutdown_timeout: float = option(
        30.0, "Seconds that running requests get to finish after SIGTERM.", low=0
    )
    max_body_bytes: int = option(16 << 20, "Largest request body in bytes.", low=1024)
    max_n: int = option(128, "Largest n of one request.", low=1)
    max_prompts: int = option(1024, "Most prompts in one completion request.", low=1)
    max_logprobs: int = option(20, "Most alternatives per token in logprobs.", low=0)
    max_beam_width: int = option(16, "Most beams of one search.", low=1)
    max_stop: int = option(64, "Most stop strings or stop token ids of one request.", low=1)
    max_logit_bias: int = option(1024, "Most entries of logit_bias.", low=1)
    max_bad_words: int = option(256, "Most entries of bad_words.", low=1)
    response_store_bytes: int = option(
        64 << 20, "Memory for responses that clients may go on from, in bytes.", low=0
    )
    response_store_ttl: float = option(
        3600.0, "Seconds after which a stored response is forgotten.", low=0
    )
    max_background_responses: int = option(
        64, "Most responses made in the background at once; 0 refuses them.", low=0
    )
    request_timeout: float = option(
        600.0, "Seconds after which a request is cancelled; 0 means never.", low=0
    )
    tool_call_parser: str = option(
        "auto", "Format of the model's tool calls: a name, none, or auto for the model's own."
    )
    reasoning_parser: str = option(
        "auto", "Format of the model's reasoning: a name, none, or auto for the model's own."
    )
    enable_auto_tool_choice: bool = option(
        False, "Accepted for command lines of vLLM; tool_choice auto is always served.", hidden=True
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    "--allowed-origins must hold * or origins such as http://localhost:3000, "
                    f"got {origin!r}"
                )
        if not all(map(_KEY.fullmatch, self.api_key)):  # a secret, so it is not shown
            raise ValueError("--api-key must be printable ASCII without blanks, and not empty")
