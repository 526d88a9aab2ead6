"""Hops under mutual TLS, with the certificates that the operator issues: who gets in, who may do what, and renewal."""

from __future__ import annotations

import base64
import datetime
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.errors import ResourceError
from shoal.resource import sharded_model_from_object
from shoal.wire.errors import CallerRefused, StageUnreachable, from_rpc_error
from shoal.wire.messages import SamplingParams
from shoal.wire.stage_pb2 import DescribeRequest, Frame, OpenRequest, ResultsRequest
from shoal.wire.stage_pb2_grpc import StageStub
from shoal.wire.tls import TlsDirectory
from shoal.wire.transport import open_channel
from shoal_operator.desired.certificates import authority_secret, leaf_secret, read_authority
from shoal_operator.desired.intent import Intent
from shoal_operator.settings import OperatorSettings
from shoal_router.generation import GenerationRequest
from shoal_router.pipeline.fake import planned_at
from shoal_router.pipeline.opener import RingOpener
from shoal_router.pipeline.plan_source import FixedPlan
from shoal_router.step_loop import StepLoop, StepLoopSettings
from shoal_stage.engine.fake import FakeEngine, fake_manifest, greedy_text
from shoal_stage.server.describe import describe_stage
from shoal_stage.server.fake import fake_pipeline
from shoal_stage.server.listen import StageServer
from shoal_stage.server.stage import Patience

SECONDS = 20
GREEDY = SamplingParams(temperature=0.0)


class Pipeline:
    """The certificates of one ShardedModel, mounted as a kubelet does it: a link that is turned in one move."""

    def __init__(self, folder: Path, name: str = "llama") -> None:
        body = {
            "apiVersion": "shoal.dev/v1alpha1",
            "kind": "ShardedModel",
            "metadata": {"name": name, "namespace": "ai", "uid": "1"},
            "spec": {"model": {"source": {"uri": "hf://org/model"}}},
        }
        # Names under .localhost are this machine, for gRPC's resolver too.
        self.intent = Intent(sharded_model_from_object(body), OperatorSettings(cluster_domain="localhost"))
        self.folder = folder
        self.generation = 0
        self.issue()

    def issue(self, *, new_authority: bool = True) -> None:
        now = datetime.datetime.now(datetime.UTC)
        if new_authority:
            self.authority = read_authority(authority_secret(self.intent, now))
        self.generation += 1
        for role in ("stage", "router"):
            data = leaf_secret(self.intent, role, self.authority, now)["data"]
            fresh = self.folder / role / f"..{self.generation}"
            fresh.mkdir(parents=True)
            for name, content in data.items():
                (fresh / name).write_bytes(base64.b64decode(content))
                link = self.folder / role / name
                if not link.is_symlink():
                    link.symlink_to(Path("..data", name))
            turned = self.folder / role / "..data_tmp"
            turned.symlink_to(fresh.name)
            turned.rename(self.folder / role / "..data")

    def of(self, role: str) -> TlsDirectory:
        return TlsDirectory(self.folder / role)

    def address(self, bound: str, stage: str = "llama-s0-0123abcd") -> str:
        port = bound.rpartition(":")[2]
        return f"{stage}.{self.intent.name}-stages.ai.svc.localhost:{port}"


@pytest.fixture
def pki(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path / "llama")


@asynccontextmanager
async def ring(pki: Pipeline, stages: int = 2):
    async with fake_pipeline(stages, tls=pki.of("stage")) as handles:
        addresses = [pki.address(handle.address, f"llama-s{n}-0123abcd") for n, handle in enumerate(handles)]
        yield FixedPlan(planned_at(addresses, [each.blocks for each in handles], handles[0].manifest.digest)), handles


async def refused(call) -> Exception:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return from_rpc_error(error.value, "there")


async def test_a_ring_under_tls_answers_as_a_plain_one(pki):
    async with ring(pki) as (plan, _):
        loop = StepLoop(RingOpener(plan, prefill_chunk=16, tls=pki.of("router")), StepLoopSettings(prefill_chunk=16))
        await loop.start()
        try:
            await loop.wait_ready(SECONDS)
            request = GenerationRequest("r", tuple(range(40)), GREEDY, 12)
            tokens = [token async for delta in loop.generate(request) for token in delta.tokens]
            assert tokens == greedy_text(range(40), 12)
        finally:
            await loop.stop()


async def test_strangers_do_not_get_in(pki, tmp_path):
    """Neither without a certificate, nor with one of another pipeline, nor to a stage of another name."""
    stranger = Pipeline(tmp_path / "other", "other")
    async with ring(pki, 1) as (plan, _):
        (address,) = plan.read().addresses
        elsewhere = f"localhost:{address.rpartition(':')[2]}"
        for target, tls in ((address, None), (address, stranger.of("router")), (elsewhere, pki.of("router"))):
            async with open_channel(target, 1 << 20, tls) as channel:
                error = await refused(StageStub(channel).Describe(DescribeRequest(), timeout=SECONDS))
            assert isinstance(error, StageUnreachable), target


async def test_a_neighbour_may_pass_frames_on_and_nothing_else(pki):
    async with ring(pki, 1) as (plan, _):
        (address,) = plan.read().addresses
        async with open_channel(address, 1 << 20, pki.of("stage")) as channel:
            stub = StageStub(channel)
            assert await stub.Describe(DescribeRequest(), timeout=SECONDS)
            error = await refused(stub.Open(OpenRequest(epoch=1), timeout=SECONDS))
            assert isinstance(error, CallerRefused)
            assert "role stage, router is needed" in str(error)
            results = stub.Results(ResultsRequest(epoch=1), timeout=SECONDS)
            assert isinstance(await refused(results.read()), CallerRefused)
            # Frames it may send: what is refused is the epoch that nobody has opened.
            run = stub.Run(timeout=SECONDS)
            await run.write(Frame(epoch=1))
            assert (await run.read()).frames > 0
            assert not isinstance(await refused(run.read()), CallerRefused)


async def test_renewed_certificates_need_no_restart(pki):
    """A pipeline that is open lives on; the next one is opened with the new certificates, and only with those."""
    async with ring(pki) as (plan, _):
        opener = RingOpener(plan, tls=pki.of("router"))
        before = pki.of("router").read()
        first = await opener.open(deadline_seconds=SECONDS, progress=lambda _: None)
        pki.issue(new_authority=True)
        await first.prove()
        await first.close()
        second = await opener.open(deadline_seconds=SECONDS, progress=lambda _: None)
        await second.close()
        old = grpc.ssl_channel_credentials(pki.of("router").read().authority, before.key, before.certificate)
        async with grpc.aio.secure_channel(plan.read().addresses[0], old) as channel:
            error = await refused(StageStub(channel).Describe(DescribeRequest(), timeout=SECONDS))
        assert isinstance(error, StageUnreachable)


async def test_a_stage_whose_files_are_gone_keeps_its_certificate(pki):
    async with ring(pki, 1) as (plan, _):
        files = pki.of("router").read()
        (pki.folder / "stage").rename(pki.folder / "elsewhere")
        credentials = grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)
        async with grpc.aio.secure_channel(plan.read().addresses[0], credentials) as channel:
            assert await StageStub(channel).Describe(DescribeRequest(), timeout=SECONDS)


async def test_a_router_without_files_says_so(pki, tmp_path):
    async with ring(pki, 1) as (plan, _):
        with pytest.raises(ResourceError, match=r"the TLS directory .* cannot be used: .*ca\.crt"):
            await RingOpener(plan, tls=TlsDirectory(tmp_path)).open(deadline_seconds=SECONDS, progress=lambda _: None)


async def test_probes_have_a_port_of_their_own(pki, unused_port):
    manifest = fake_manifest(layers=4)
    description = describe_stage(
        manifest, 0, 6, engine="fake", device="CPU", exact=True, max_frame_bytes=1 << 20, versions=None
    )
    probes = f"127.0.0.1:{unused_port}"
    server = StageServer(lambda: FakeEngine(0, 6), description, Patience(), pki.of("stage"), probes)
    await server.start("127.0.0.1:0")
    try:
        await server.stage.settled.wait()
        async with grpc.aio.insecure_channel(probes) as channel:
            asked = health_pb2.HealthCheckRequest(service="shoal.stage.v1.Stage")
            answer = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=SECONDS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            error = await refused(StageStub(channel).Describe(DescribeRequest(), timeout=SECONDS))
            assert "UNIMPLEMENTED" in str(error)
    finally:
        await server.stop()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
