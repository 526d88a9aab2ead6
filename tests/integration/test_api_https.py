"""The API over HTTPS, and a certificate that is renewed under open streams."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from chaos.certificates import issue
from shoal.errors import ResourceError
from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.https import ServerCertificate
from shoal_router.serve import listen, serve
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import fake_text_model
from shoaltest.waiting import until_elsewhere

BODY = {"model": "fake", "prompt": "a", "max_tokens": 6, "ignore_eos": True, "stream": True}


class Runtime(FakeGenerator):
    """A FakeGenerator with a life."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def wait_ready(self, timeout: float) -> None: ...


@asynccontextmanager
async def https(certificate: ServerCertificate, runtime: Runtime) -> AsyncIterator[int]:
    bound = listen("127.0.0.1", 0)
    app = create_app(runtime, fake_text_model(), ApiSettings(served_names=("fake",)))
    task = asyncio.create_task(serve(app, runtime, bound, 5.0, certificate=certificate))
    try:
        yield bound.getsockname()[1]
    finally:
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            await task


def trusting(directory: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=directory / "ca.crt")


async def served_serial(port: int, context: ssl.SSLContext) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(der).serial_number
    finally:
        writer.close()


async def test_a_certificate_is_renewed_under_a_stream_and_a_broken_one_is_not_taken(tmp_path: Path) -> None:
    first = issue(tmp_path / "first")["router"].path
    second = issue(tmp_path / "second")["router"].path
    live = tmp_path / "live"
    live.mkdir()

    def put(source: Path, *names: str) -> None:
        for name in names:
            (live / name).write_bytes((source / name).read_bytes())

    put(first, "tls.crt", "tls.key")
    certificate = ServerCertificate(live)
    gate = asyncio.Event()
    runtime = Runtime(script=lambda _: range(10, 20), gate=gate, gate_after=3)
    async with (
        https(certificate, runtime) as port,
        httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=trusting(first), timeout=20) as client,
    ):
        old = await served_serial(port, trusting(first))
        async with client.stream("POST", "/v1/completions", json=BODY) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            put(second, "tls.crt")
            with pytest.raises(ResourceError, match="are no certificate with its key"):
                certificate.renew()
            assert await served_serial(port, trusting(first)) == old
            put(second, "tls.key")
            assert certificate.renew()
            assert not certificate.renew()
            assert await served_serial(port, trusting(second)) != old
            with pytest.raises(ssl.SSLCertVerificationError):
                await served_serial(port, trusting(first))
            gate.set()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert not [line for line in rest if '"error"' in line]
        # The connection that was open before is still good for the next request.
        assert (await client.get("/health/live")).status_code == 200


async def test_files_are_looked_at_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="shoal_router.https")
    folder = issue(tmp_path / "first")["router"].path
    certificate = ServerCertificate(folder)
    task = asyncio.create_task(certificate.keep_new(0.01))
    try:
        (folder / "tls.key").unlink()
        await until_elsewhere(lambda: "the last certificate stays in use" in caplog.text)
        fresh = issue(tmp_path / "second")["router"].path
        for name in ("tls.crt", "tls.key"):
            (folder / name).write_bytes((fresh / name).read_bytes())
        await until_elsewhere(lambda: "the API's certificate was renewed" in caplog.text)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_router_without_a_certificate_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"the API's TLS files cannot be read: .*tls\.crt"):
        ServerCertificate(tmp_path)
