"""OPS-26: whatever a client sends, one record is one line."""

import io
import json
import logging

from xllm.core.observability.logging import (
    JsonFormatter,
    OneLineFormatter,
    configure_logging,
    get_logger,
)

EVIL = "a\r\nERROR 01-01 00:00:00 [xllm] forged\x1b[2J\x00\u2028\x85end"


def rendered(record_args: object, exc: BaseException | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLineFormatter())
    logger = logging.Logger("xllm.test")
    logger.addHandler(handler)
    logger.error("model %s", record_args, exc_info=exc)
    return stream.getvalue()


def test_control_bytes_are_escaped_and_the_record_is_one_line() -> None:
    text = rendered(EVIL)
    assert text.count("\n") == 1 and text.endswith("\n")
    assert len(text.splitlines()) == 1
    assert "\\r\\nERROR" in text and "\\x1b[2J\\x00\\u2028\\x85end" in text


def test_a_traceback_cannot_pass_for_records() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        text = rendered("m", error)
    first, *rest = text.rstrip("\n").split("\n")
    assert first.startswith("ERROR ")
    assert rest and all(line.startswith("  | ") for line in rest)
    assert not any(c in text for c in "\r\x1b\x00\u2028")


def test_the_configured_level_decides_what_is_logged(capsys: object) -> None:
    configure_logging("warning")
    try:
        assert not get_logger("xllm.some.module").isEnabledFor(logging.INFO)
        assert get_logger("xllm.some.module").isEnabledFor(logging.WARNING)
    finally:
        root = logging.getLogger("xllm")
        root.handlers.clear()
        root.setLevel(logging.NOTSET)
        root.propagate = True


def json_record(**extra: object) -> dict[str, object]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("xllm.test")
    logger.addHandler(handler)
    logger.warning("model %s", EVIL, **extra)  # type: ignore[arg-type]
    (line,) = stream.getvalue().splitlines()
    record: dict[str, object] = json.loads(line)
    return record


def test_a_json_record_is_one_line_with_its_fields() -> None:
    record = json_record(extra={"fields": {"request_id": "r1", "prompt_tokens": 3}})
    assert record["message"] == f"model {EVIL}"
    assert (record["level"], record["logger"]) == ("warning", "xllm.test")
    assert (record["request_id"], record["prompt_tokens"]) == ("r1", 3)
    assert str(record["time"]).endswith("+00:00")


def test_a_json_record_holds_its_traceback() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        assert "ValueError" in str(json_record(exc_info=True)["exception"])
