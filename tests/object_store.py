"""A store on this machine that speaks as much of S3 as `aws s3` asks for, and answers
SageMaker's lists, so that AWS's own command line can be used without an account."""

import json
import os
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from distcheck import mpi


class Store(ThreadingHTTPServer):
    """objects: what is there, by "BUCKET/KEY". puts: all that was ever sent, in its
    order. lists: what SageMaker answers, by the call, such as ListEndpoints. folder:
    for its programs `aws`."""

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Requests)
        self.folder = folder
        self.objects: dict[str, bytes] = {}
        self.puts: list[tuple[str, bytes]] = []
        self.lists: dict[str, dict] = {}

    def path(self, aws: str) -> str:
        """A PATH on which `aws` is this program, told that AWS is here."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        command = f"{aws} --endpoint-url http://127.0.0.1:{self.server_address[1]}"
        keys = "AWS_ACCESS_KEY_ID=of AWS_SECRET_ACCESS_KEY=nobody"
        where = "AWS_DEFAULT_REGION=eu-central-1 NO_PROXY=127.0.0.1"
        # Newer ones else send checksums in a way of their own.
        plain = "AWS_REQUEST_CHECKSUM_CALCULATION=when_required"
        (folder / "aws").write_text(
            f'#!/bin/sh\nexport {keys} {where} {plain}\nexec {command} "$@"\n'
        )
        (folder / "aws").chmod(0o755)
        return f"{folder}{os.pathsep}{mpi.clean_environment()['PATH']}"


class Requests(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    @property
    def key(self):
        return unquote(urlsplit(self.path).path).lstrip("/")

    def answer(self, body="", status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def read(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_PUT(self):
        body = self.read()
        self.server.objects[self.key] = body
        self.server.puts.append((self.key, body))
        self.answer()

    def do_DELETE(self):
        self.server.objects.pop(self.key, None)
        self.answer(status=204)

    def do_GET(self):
        (prefix,) = parse_qs(urlsplit(self.path).query).get("prefix", [""])
        bucket, objects = f"{self.key.rstrip('/')}/", ""
        for key, body in sorted(self.server.objects.items()):
            if key.startswith(bucket + prefix):
                name, length = escape(key.removeprefix(bucket)), len(body)
                objects += f"<Contents><Key>{name}</Key><Size>{length}</Size>"
                # Older than any file here, as if each of them had grown since.
                objects += (
                    "<LastModified>2020-01-01T00:00:00Z</LastModified></Contents>"
                )
        self.answer(f"<ListBucketResult>{objects}</ListBucketResult>")

    def do_POST(self):
        self.read()
        call = self.headers["X-Amz-Target"].partition(".")[2]
        self.answer(json.dumps(self.server.lists[call]))

    def log_message(self, *_):
        pass
