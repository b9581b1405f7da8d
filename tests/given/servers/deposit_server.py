"""A store of objects over HTTP for seals: takes each object once, as one with retention does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ObjectStore:
    """Objects by path, served on a port that stays the same when the server is away for a while."""

    def __init__(self, *, token: str = "") -> None:
        self.objects: dict[str, bytes] = {}
        self._token = token
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/bucket/seals"

    def start(self) -> None:
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if store._token and self.headers.get("Authorization") != f"Bearer {store._token}":
                    self._answer(403)
                elif self.path in store.objects and self.headers["If-None-Match"] == "*":
                    self._answer(412)
                else:
                    store.objects[self.path] = body
                    self._answer(201)

            def do_GET(self) -> None:
                content = store.objects.get(self.path)
                self._answer(404 if content is None else 200, content or b"")

            def _answer(self, status: int, content: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def object_store(*, token: str = "") -> Iterator[ObjectStore]:
    store = ObjectStore(token=token)
    store.start()
    try:
        yield store
    finally:
        store.stop()
