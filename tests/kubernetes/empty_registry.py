"""A registry of images that has none: `python -m tests.kubernetes.empty_registry PORT`."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        code = 403 if "secret" in self.path else 404
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Empty).serve_forever()
