"""From a store to a node's cache: only what is asked for, verified, resumed, never twice."""

from __future__ import annotations

import hashlib
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import IntegrityError, ResourceError, UsageError
from shoal.manifest import Block, BlockKind, FileEntry, Manifest, ModelShape, Precision
from shoal.plan.facts import ModelFacts
from shoal.plan.facts_json import facts_from_json
from shoal_stage.store.__main__ import main
from shoal_stage.store.pull import Pull
from shoal_stage.store.serve import StoreServer

LAYERS = 3
SIZE = 300_000


def content(name: str) -> bytes:
    return (hashlib.sha256(name.encode()).digest() * (SIZE // 32 + 1))[:SIZE]


def write_model(directory: Path) -> Manifest:
    """A model directory whose blocks are noise."""

    def entry(path: str) -> FileEntry:
        data = content(path)
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
        return FileEntry(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def block(name: str, kind: BlockKind) -> Block:
        xml, bin_ = entry(f"blocks/{name}.xml"), entry(f"blocks/{name}.bin")
        return Block(name=name, kind=kind, xml=xml, bin=bin_, weight_bytes=SIZE)

    layers = [block(f"layer-{number:03}", BlockKind.LAYER) for number in range(LAYERS)]
    shape = ModelShape(
        family="llama",
        layers=LAYERS,
        hidden_size=64,
        heads=4,
        kv_heads=2,
        head_size=16,
        vocab_size=100,
        max_context=512,
    )
    manifest = Manifest(
        name="tiny",
        source_sha256="0" * 64,
        precision=Precision.F32,
        shape=shape,
        tied_embeddings=False,
        blocks=(block("embed", BlockKind.EMBED), *layers, block("head", BlockKind.HEAD)),
        tokenizer=(entry("tokenizer/tokenizer.json"),),
    )
    (directory / "manifest.json").write_bytes(manifest.canonical_json())
    return manifest


@pytest.fixture
def model(tmp_path: Path) -> Manifest:
    return write_model(tmp_path / "shelf" / "anything")


@pytest.fixture
def store(tmp_path: Path, model: Manifest) -> Iterator[str]:
    server = StoreServer(tmp_path / "shelf", "127.0.0.1:0")
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.url
    server.stop()
    thread.join(timeout=10)


def test_case_47_only_the_blocks_of_the_stage_are_pulled(store, model, tmp_path):
    pulled = Pull(store, model.digest, tmp_path / "cache").run((2, 4))
    there = {str(path.relative_to(pulled.directory)) for path in pulled.directory.rglob("*") if path.is_file()}
    assert there == {
        ".lock",
        "manifest.json",
        "tokenizer/tokenizer.json",
        "blocks/layer-001.xml",
        "blocks/layer-001.bin",
        "blocks/layer-002.xml",
        "blocks/layer-002.bin",
    }
    manifest_bytes = (pulled.directory / "manifest.json").stat().st_size
    assert pulled.fetched == 5 * SIZE + manifest_bytes
    for file in model.files_of(2, 4):
        assert (pulled.directory / file.path).read_bytes() == content(file.path)


def test_case_48_a_second_pull_fetches_nothing(store, model, tmp_path):
    Pull(store, model.digest, tmp_path / "cache").run((0, 3))
    again = Pull(store, model.digest, tmp_path / "cache").run((0, 3))
    assert again.fetched == 0
    assert again.present == 7 * SIZE
    wider = Pull(store, model.digest, tmp_path / "cache").run((0, 5))
    assert wider.fetched == 4 * SIZE


def test_a_router_pulls_the_tokenizer_alone(store, model, tmp_path):
    pulled = Pull(store, model.digest, tmp_path / "cache").run(None)
    assert not (pulled.directory / "blocks").exists()
    assert (pulled.directory / "tokenizer/tokenizer.json").exists()


def test_what_was_interrupted_goes_on_at_its_last_byte(store, model, tmp_path):
    directory = tmp_path / "cache" / model.digest
    (directory / "blocks").mkdir(parents=True)
    path = "blocks/embed.bin"
    (directory / f"{path}.partial").write_bytes(content(path)[: SIZE - 10])
    pulled = Pull(store, model.digest, tmp_path / "cache").run((0, 1))
    manifest_bytes = (directory / "manifest.json").stat().st_size
    assert pulled.fetched == 2 * SIZE + 10 + manifest_bytes
    assert (directory / path).read_bytes() == content(path)


def test_a_damaged_rest_is_fetched_anew(store, model, tmp_path):
    directory = tmp_path / "cache" / model.digest
    (directory / "blocks").mkdir(parents=True)
    (directory / "blocks/embed.bin.partial").write_bytes(b"x" * (SIZE - 10))
    Pull(store, model.digest, tmp_path / "cache").run((0, 1))
    assert (directory / "blocks/embed.bin").read_bytes() == content("blocks/embed.bin")


def test_a_damaged_file_of_the_cache_is_replaced(store, model, tmp_path):
    pulled = Pull(store, model.digest, tmp_path / "cache").run((0, 1))
    (pulled.directory / "blocks/embed.bin").write_bytes(b"x" * SIZE)
    again = Pull(store, model.digest, tmp_path / "cache").run((0, 1))
    assert again.fetched == SIZE
    assert (pulled.directory / "blocks/embed.bin").read_bytes() == content("blocks/embed.bin")


def test_a_store_with_damaged_blocks_is_refused(store, model, tmp_path):
    (tmp_path / "shelf/anything/blocks/embed.bin").write_bytes(b"x" * SIZE)
    with pytest.raises(IntegrityError, match=r"blocks/embed.bin came with digest .*: is the store's disk damaged"):
        Pull(store, model.digest, tmp_path / "cache").run((0, 1))
    assert not (tmp_path / "cache" / model.digest / "blocks/embed.bin").exists()


def test_a_store_that_is_not_there_is_said(model, tmp_path):
    with pytest.raises(ResourceError, match=r"gives no manifest\.json"):
        Pull("http://127.0.0.1:1", model.digest, tmp_path / "cache", give_up_seconds=0).run((0, 1))


def test_blocks_beyond_the_model_are_refused(store, model, tmp_path):
    with pytest.raises(UsageError, match="0:9, but the model has 5 blocks"):
        Pull(store, model.digest, tmp_path / "cache").run((0, 9))


@pytest.mark.parametrize("path", ["manifest.json/../../secret", "secret", "../secret", "blocks/embed.bin/..", ""])
def test_nothing_but_files_of_a_manifest_is_served(store, model, tmp_path, path):
    (tmp_path / "shelf/anything/secret").write_text("secret")
    (tmp_path / "shelf/secret").write_text("secret")
    connection = http.client.HTTPConnection(store.removeprefix("http://"), timeout=5)
    connection.request("GET", f"/{model.digest}/{path}")
    response = connection.getresponse()
    assert response.status == 404
    assert b"secret" not in response.read()
    connection.close()


def test_ranges_and_health(store, model):
    connection = http.client.HTTPConnection(store.removeprefix("http://"), timeout=5)
    connection.request("GET", f"/{model.digest}/blocks/embed.xml", headers={"Range": "bytes=5-9"})
    response = connection.getresponse()
    assert (response.status, response.getheader("Content-Range")) == (206, f"bytes 5-9/{SIZE}")
    assert response.read() == content("blocks/embed.xml")[5:10]
    connection.request("GET", f"/{model.digest}/blocks/embed.xml", headers={"Range": f"bytes={SIZE}-"})
    refused = connection.getresponse()
    assert refused.status == 416
    refused.read()
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_model_that_is_compiled_later_is_found(store, tmp_path):
    other = write_model(tmp_path / "building").model_copy(update={"name": "other"})
    (tmp_path / "building/manifest.json").write_bytes(other.canonical_json())
    (tmp_path / "building").rename(tmp_path / "shelf/other")
    assert Pull(store, other.digest, tmp_path / "cache").run((0, 1)).fetched > 0


def test_the_report_says_what_the_planner_needs(model, tmp_path, capsys):
    code = main(["report", f"--directory={tmp_path / 'shelf/anything'}", f"--to={tmp_path / 'message'}"])
    assert code == 0
    text = (tmp_path / "message").read_text()
    assert len(text) < 4096
    assert facts_from_json(text) == ModelFacts.of_manifest(model)


def test_errors_are_one_line(tmp_path, capsys):
    assert main(["report", f"--directory={tmp_path}", "--to=/dev/null"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["pull", "--from=http://127.0.0.1:1", "--digest=x", f"--into={tmp_path}", "--blocks=5"]) == 2
    assert "is not START:END" in capsys.readouterr().err
