"""Set-up prints a few lines, with progress for a long download, and says why it failed."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "weighty-1.0-py3-none-any.whl"
MEGABYTES = 6
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]


@pytest.fixture
def install(monkeypatch):
    """The module that runs pip, with six megabytes as a large download."""
    spec = spec_from_file_location("install", ROOT / ".ci/install.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LARGE_MB", MEGABYTES / 2)
    monkeypatch.setattr(module, "EVERY_S", 0.2)
    monkeypatch.setattr(module, "_LOOK_S", 0.1)
    return module


def wheel():
    """A package that a real pip accepts, uncompressed."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("weighty.bin", bytes(MEGABYTES * 10**6))
        info = "weighty-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: weighty\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return packed.getvalue()


@contextmanager
def slow_index():
    """An index of one package that takes about two seconds to download."""
    body = wheel()

    class Index(BaseHTTPRequestHandler):
        def do_GET(self):
            page = f'<a href="/{NAME}">{NAME}</a>'.encode()
            whole = self.path.endswith(NAME)
            parts = (
                [body[at : at + 300_000] for at in range(0, len(body), 300_000)]
                if whole
                else [page]
            )
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if whole else "text/html")
            self.send_header("Content-Length", str(sum(map(len, parts))))
            self.end_headers()
            for part in parts:
                self.wfile.write(part)
                time.sleep(0.1 if whole else 0)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple/"
    finally:
        # This also runs if the test fails; otherwise the process would wait for the thread for
        # ever.
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_long_download_shows_how_far_it_is_and_nothing_else_is_printed(install, tmp_path):
    out = io.StringIO()
    log = tmp_path / "pip.log"
    with slow_index() as url:
        where = [
            "--isolated",
            "--no-cache-dir",
            "--index-url",
            url,
            "--target",
            str(tmp_path / "there"),
        ]
        assert install.run(log, [*PIP, *where, "weighty"], out) == 0, log.read_text()
    first, *progress, last = out.getvalue().splitlines()
    assert first == f"tiercel:   downloading {NAME}, {MEGABYTES} MB"
    done = [
        int(re.fullmatch(rf"tiercel:   {NAME}: (\d) of {MEGABYTES} MB", line)[1])
        for line in progress
    ]
    assert len(done) >= 3
    assert done == sorted(done)
    assert done[0] < done[-1]
    assert last == "tiercel:   unpacking weighty"
    assert "Successfully installed weighty-1.0" in log.read_text()
    assert list(tmp_path.glob("tiercel-pip-*")) == []


def test_a_terminal_sees_one_line_that_is_written_again(install, tmp_path, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    progress = install.Progress(tmp_path, out)
    progress.line(f"  Downloading {NAME} (6.0 MB)\n")
    for size in (1, 2):
        (tmp_path / "part").write_bytes(bytes(size * 10**6))
        time.sleep(0.15)
        progress.look()
    progress.line("Installing collected packages: weighty\n")
    [_, again, unpacking, _] = out.getvalue().split("\n")
    assert re.findall(r"\r[^\r]*: (\d) of 6 MB", again) == ["1", "2"]
    assert unpacking == "tiercel:   unpacking weighty"


def test_of_many_packages_the_number_is_told(install, tmp_path):
    out = io.StringIO()
    install.Progress(tmp_path, out).line("Installing collected packages: a, b, c, d\n")
    assert out.getvalue() == "tiercel:   unpacking 4 packages\n"


def test_a_failure_shows_the_last_lines_and_where_the_others_are(install, tmp_path):
    out = io.StringIO()
    log = tmp_path / "pip.log"
    many = ["import sys", "for n in range(100): print('line', n)", "sys.exit(3)"]
    assert install.run(log, [sys.executable, "-c", "\n".join(many)], out) == 3
    first, *last = out.getvalue().splitlines()
    assert str(log) in first
    assert last == [f"  line {number}" for number in range(70, 100)]
    assert log.read_text().count("\n") == 100


def test_a_package_that_is_not_there_is_named(install, tmp_path):
    out = io.StringIO()
    assert (
        install.run(
            tmp_path / "pip.log", [*PIP, "--isolated", "--no-index", "nothing-of-this-name"], out
        )
        == 1
    )
    assert "No matching distribution found for nothing-of-this-name" in out.getvalue()


def test_continuous_integration_runs_in_a_folder_with_a_space_and_the_packages_name(tmp_path):
    """A test or a script that depends on the path of the checkout fails there."""
    checkout = tmp_path / "checkout"
    for name in (".ci/run", "Makefile"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    for name in (".venv/of the checkout", ".cache/of the checkout", "not committed"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).touch()
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text('#!/bin/sh\npwd\necho "$@"\nls -A\nexit 3\n')
    make.chmod(0o755)
    done = subprocess.run(
        [checkout / ".ci/run"],
        env={**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    folder, targets, *there = done.stdout.splitlines()
    assert folder.endswith("/a folder/tiercel")
    assert targets == "test test-all"
    assert there == [".ci", "Makefile", "not committed"]
    assert [path.name for path in (checkout / ".cache").iterdir()] == ["of the checkout"]
