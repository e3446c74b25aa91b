"""A sink for events: an HTTP server of the standard library that consents, keeps what comes, and answers as told."""

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.support.process.certificates import Issued

PATIENCE_S = 60.0


class Delivered(NamedTuple):
    """A request that came: header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int  # that it was answered


class WebhookSink:
    """Answers `answer(request)`, a status or a status and headers; consents as `consent` says, None: not at all.

    With a certificate it listens over TLS, and over nothing else.
    """

    def __init__(
        self,
        answer: Callable[[Delivered], Any] = lambda request: 204,
        *,
        consent: str | None = "*",
        certificate: Issued | None = None,
    ) -> None:
        self.answer = answer
        self.consent = consent
        self.rate: str | None = None
        self.asked: list[Delivered] = []
        self.begun = 0  # requests with events that have come, though they may not be answered yet
        self.came: list[Delivered] = []
        self._changed = threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_OPTIONS(self) -> None:
                request = self._request(200)
                with sink._changed:
                    sink.asked.append(request)
                    sink._changed.notify_all()
                self.send_response(200)
                if sink.consent is not None:
                    self.send_header("WebHook-Allowed-Origin", sink.consent)
                if sink.rate is not None:
                    self.send_header("WebHook-Allowed-Rate", sink.rate)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                request = self._request(0)
                with sink._changed:
                    sink.begun += 1
                answer = sink.answer(request)
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                with sink._changed:
                    sink.came.append(request._replace(status=status))
                    sink._changed.notify_all()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _request(self, status: int) -> Delivered:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:
                    raise ConnectionError("the gateway was killed in the middle of a request")
                headers = {name.lower(): value for name, value in self.headers.items()}
                return Delivered(self.command, self.path, headers, body, status)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                pass  # the gateway was killed

        self._server = Server(("127.0.0.1", 0), Handler)
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate.cert_file, certificate.key_file)
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.tls_url = f"https://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def taken(self) -> list[Delivered]:
        """Returns the requests that were answered 2xx."""
        return [one for one in list(self.came) if 200 <= one.status < 300]

    def wait_until(self, holds: Callable[[], Any], what: str = "") -> Any:
        """Waits until something holds that depends on what has come."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not (found := holds()):
                left = deadline - time.monotonic()
                assert left > 0, what or [(one.path, one.status, one.body[:40]) for one in self.came[-5:]]
                self._changed.wait(min(left, 0.2))
        return found

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
