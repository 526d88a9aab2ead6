"""Certificates: made once, renewed in time, and never a reason to start a pod anew."""

from __future__ import annotations

import base64
import datetime

from cryptography import x509

from shoal.wire.tls import ROUTER, STAGE, role_of
from shoal_operator.cluster.kinds import DEPLOYMENT, SECRET, Ref
from shoal_operator.desired.certificates import LEAF_DAYS, RENEW_BEFORE


def secret(office, name: str) -> dict[str, str]:
    return office.cluster.objects[Ref(SECRET, "ai", f"llama-8b-{name}")]["data"]


def certificate(office, role: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret(office, f"{role}-tls")["tls.crt"]))


def deployments(office) -> list[tuple[str, int]]:
    found = office.cluster.of_kind(DEPLOYMENT)
    return [(obj["metadata"]["name"], obj["metadata"]["generation"]) for obj in found]


async def test_a_certificate_names_its_role_as_the_hops_read_it(office):
    await office.settle()
    for role in (STAGE, ROUTER):
        names = certificate(office, role).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        assert uri == f"spiffe://cluster.local/ns/ai/shoal/llama-8b/{role}"
        assert role_of({"peer_spiffe_id": [uri.encode()]}) == role
    (host,) = (
        certificate(office, STAGE)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value.get_values_for_type(x509.DNSName)
    )
    assert host == "*.llama-8b-stages.ai.svc.cluster.local"


def test_a_caller_without_one_identity_has_no_role():
    assert role_of({}) is None
    assert role_of({"peer_spiffe_id": [b"spiffe://a/router", b"spiffe://b/stage"]}) is None


async def test_they_are_renewed_in_time_and_nothing_starts_anew(office):
    await office.settle()
    authority, before, pods = secret(office, "ca"), secret(office, "stage-tls"), deployments(office)
    office.now += datetime.timedelta(days=LEAF_DAYS) - RENEW_BEFORE - datetime.timedelta(hours=1)
    await office.settle()
    assert secret(office, "stage-tls") == before
    office.now += datetime.timedelta(hours=2)
    await office.settle()
    assert secret(office, "stage-tls") != before
    assert secret(office, "ca") == authority
    assert certificate(office, STAGE).not_valid_after_utc > office.now + RENEW_BEFORE
    assert deployments(office) == pods
    assert office.condition("Ready")["status"] == "True"


async def test_one_for_other_names_is_made_anew(make_office, make_node):
    """Such as one of a version that named no role, or of a cluster whose domain has changed."""
    office = make_office(make_node("pc-01", "28Gi"))
    office.apply()
    await office.settle()
    before = secret(office, "router-tls")
    office.settings = office.settings.model_copy(update={"cluster_domain": "office.example"})
    office.new_operator()
    await office.settle()
    assert secret(office, "router-tls") != before
    assert certificate(office, ROUTER).issuer == certificate(office, STAGE).issuer


async def test_a_damaged_one_is_made_anew(office):
    await office.settle()
    ref = Ref(SECRET, "ai", "llama-8b-stage-tls")
    office.cluster.put(
        {**office.cluster.objects[ref], "data": {"tls.crt": "bm8=", "tls.key": "bm8=", "ca.crt": "bm8="}}
    )
    await office.settle()
    assert certificate(office, STAGE).not_valid_after_utc > office.now
