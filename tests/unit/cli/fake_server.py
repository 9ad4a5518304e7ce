"""A server with the OpenAI API's shape whose every answer is scripted, on a thread of its own."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeServer:
    """Answers ``num_tokens`` words to every request; keeps what it was asked.

    Args:
        num_tokens: events with a choice per answer.
        status: of every completion.
        usage: whether streams end with usage.
    """

    def __init__(self, num_tokens: int = 3, status: int = 200, usage: bool = True) -> None:
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.num_connections = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                owner.num_connections += 1
                super().setup()

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client stopped reading
                    super().handle()

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                self._plain(200, {"data": [{"id": "fake"}]})

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                owner.bodies.append(json.loads(self.rfile.read(length)))
                owner.headers.append(dict(self.headers))
                if status != 200:
                    self._plain(status, {"error": {"message": "no room"}})
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for index in range(num_tokens):
                    text = f"w{index} "
                    self._event({"choices": [{"text": text, "delta": {"content": text}}]})
                if usage:
                    self._event({"choices": [], "usage": {"completion_tokens": num_tokens}})
                self._chunk(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

            def _event(self, event: dict) -> None:
                # In two chunks: a client must put events together again.
                data = b"data: " + json.dumps(event).encode() + b"\n\n"
                self._chunk(data[:9])
                self._chunk(data[9:])

            def _chunk(self, data: bytes) -> None:
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

            def _plain(self, code: int, body: dict) -> None:
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
