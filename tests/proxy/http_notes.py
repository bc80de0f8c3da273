"""The server of `small_server` over HTTP, each request on a thread: `python http_notes.py PORT FILE`."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from small_server import answer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        result = answer(request, sys.argv[2])
        body = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "result": result}).encode()
        self.send_response(200 if "id" in request else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
