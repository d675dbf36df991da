"""The wait before Envoy ends, against a stand-in for its admin socket."""

import http.server
import json
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar, Final

PROGRAM: Final = Path(__file__).parents[3] / "docker/drain.py"


class Admin(http.server.BaseHTTPRequestHandler):
    """Has one request less each time it is asked."""

    left: ClassVar[list[int]] = []
    asked: ClassVar[list[str]] = []

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def do_POST(self) -> None:
        self.asked.append(f"POST {self.path}")
        self.answer("OK")

    def do_GET(self) -> None:
        self.asked.append("GET")
        active = self.left.pop(0)
        rows = [
            {"name": "http.admin.downstream_rq_active", "value": 1},
            {"name": "http.http.downstream_rq_active", "value": active},
            {"name": "http.metrics.downstream_rq_active", "value": 0},
        ]
        self.answer(json.dumps({"stats": rows}))

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def test_the_doors_close_first_and_the_last_request_ends_the_wait(
    tmp_path: Path,
) -> None:
    path = tmp_path / "admin.sock"
    Admin.left, Admin.asked = [2, 1, 0], []
    with socketserver.ThreadingUnixStreamServer(str(path), Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        command = [sys.executable, str(PROGRAM), str(path)]
        status = subprocess.run(command, check=False, timeout=30).returncode
        server.shutdown()
        thread.join()
    assert (status, Admin.left) == (0, [])
    assert Admin.asked == ["POST /drain_listeners", "GET", "GET", "GET"]
