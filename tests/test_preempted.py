"""solutions/preempted.py keeps its count when it is told to end, also where TensorFlow
believes to be on Google Cloud. That is pretended: a server answers for the host."""

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from processes import serving

from utils.base import course

PROGRAM = course.PACKAGE_ROOT / "solutions" / "preempted.py"


class Metadata(BaseHTTPRequestHandler):
    """Whatever is asked of Google's host: it has this name, and no notice."""

    def do_GET(self):
        self.server.asked = True
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"NONE")

    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("google", [False, True])
def test_what_was_counted_is_kept(google, tmp_path, monkeypatch):
    with serving(HTTPServer(("127.0.0.1", 0), Metadata)) as server:
        server.asked = False
        host = f"127.0.0.1:{server.server_address[1]}" if google else "127.0.0.1:9"
        monkeypatch.setenv("GCE_METADATA_IP", host)  # in the place of Google's
        line = [sys.executable, PROGRAM, "--kept", tmp_path, "--steps"]
        counting = subprocess.Popen([*line, "2000"], stdout=subprocess.PIPE, text=True)
        try:
            assert counting.stdout.readline() == "Begins after step 0\n"
            counting.terminate()
            assert counting.wait(100) == 42
        finally:
            counting.kill()
            counting.stdout.close()
        again = subprocess.run(
            [*line, "0"], capture_output=True, text=True, timeout=100
        )
        assert server.asked == google
    begin, end = (int(text.split()[-1]) for text in again.stdout.splitlines())
    assert begin == end > 0
