"""Mutual TLS of one ShardedModel: its own authority, a certificate for the router and one for its stages.

An authority a model: a stage of another model, or a stranger in the cluster, holds no certificate that counts here.
Certificates name the role by a SPIFFE id, so that a stage can tell the router from its neighbours. The time
comes in as an argument; a Secret that is valid and not due is never made again. Stages and routers mount their own
Secret and read it anew by themselves: a renewal restarts nothing.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal_operator import names
from shoal_operator.cluster.kinds import SECRET, Object
from shoal_operator.desired.intent import Intent

AUTHORITY_DAYS: Final = 3650
LEAF_DAYS: Final = 90
RENEW_BEFORE: Final = datetime.timedelta(days=30)
TLS_DIRECTORY: Final = "/etc/shoal/tls"
BACKDATED: Final = datetime.timedelta(minutes=10)
"""Clocks of PCs differ by some minutes."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The model's own certificate authority. Its Secret is mounted nowhere."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def authority_name(model: str) -> str:
    """The authority's Secret."""
    return f"{model}-ca"


def leaf_name(model: str, role: str) -> str:
    """The Secret of one role's certificate."""
    return f"{model}-{role}-tls"


def authority_secret(intent: Intent, now: datetime.datetime) -> Object:
    """A new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"shoal {intent.namespace}/{intent.name}", "authority")
    certificate = (
        _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _secret(intent, authority_name(intent.name), names.STAGE, certificate, key, certificate)


def leaf_secret(intent: Intent, role: str, authority: Authority, now: datetime.datetime) -> Object:
    """A new certificate for the router, or for the stages, signed by the authority; both sides of a hop use it."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(
        _subject(f"{intent.name} {role}", role), authority.certificate.subject, key.public_key(), now, LEAF_DAYS
    )
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    *(x509.DNSName(name) for name in hosts(intent, role)),
                    x509.UniformResourceIdentifier(spiffe_id(intent, role)),
                ]
            ),
            critical=False,
        )
        .add_extension(issuer_key, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _secret(intent, leaf_name(intent.name, role), role, certificate, key, authority.certificate)


def hosts(intent: Intent, role: str) -> tuple[str, ...]:
    """The DNS names of a role. Stages come and go under one headless Service, so theirs is a wildcard."""
    domain = f"{intent.namespace}.svc.{intent.settings.cluster_domain}"
    if role == names.STAGE:
        return (f"*.{names.stages_service(intent.name)}.{domain}",)
    return (f"{intent.name}-router.{domain}",)


def spiffe_id(intent: Intent, role: str) -> str:
    """Who holds the certificate; its last part is the role that `shoal.wire.tls` reads."""
    return f"spiffe://{intent.settings.cluster_domain}/ns/{intent.namespace}/shoal/{intent.name}/{role}"


def identities(intent: Intent, role: str) -> tuple[str, ...]:
    """Every name in the certificate of a role."""
    return (*hosts(intent, role), spiffe_id(intent, role))


def tls_files(model: str, role: str) -> tuple[Object, Object]:
    """The volume with a role's certificate, and its mount."""
    volume = {"name": "tls", "secret": {"secretName": leaf_name(model, role), "defaultMode": 0o440}}
    return volume, {"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True}


def read_authority(secret: Mapping[str, Any]) -> Authority:
    """The authority from its Secret. Raises ValueError, KeyError or TypeError when it is damaged."""
    data = secret["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    key = serialization.load_pem_private_key(base64.b64decode(data["tls.key"]), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the authority's key does not belong to its certificate")
    return Authority(certificate, key)


def is_due(
    secret: Mapping[str, Any] | None,
    wanted: tuple[str, ...],
    authority: x509.Certificate | None,
    now: datetime.datetime,
) -> bool:
    """Whether a Secret is made anew: there is none, it ends soon, it is for other names or by another authority."""
    if secret is None:
        return True
    try:
        data = secret["data"]
        certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
        signer = x509.load_pem_x509_certificate(base64.b64decode(data["ca.crt"]))
        if certificate.not_valid_after_utc - RENEW_BEFORE <= now or "tls.key" not in data:
            return True
        if authority is None:
            return False
        if signer != authority:
            return True
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names_found = (
            *found.get_values_for_type(x509.DNSName),
            *found.get_values_for_type(x509.UniformResourceIdentifier),
        )
        return names_found != wanted
    except (KeyError, TypeError, ValueError, x509.ExtensionNotFound):
        return True


def _subject(common_name: str, role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "shoal"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            # X.509 ends a common name at 64 characters; the role and the alternative names are what is checked.
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _secret(
    intent: Intent,
    name: str,
    role: str,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
) -> Object:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {"tls.crt": certificate.public_bytes(pem), "tls.key": private, "ca.crt": authority.public_bytes(pem)}
    data = {file: base64.b64encode(content).decode() for file, content in files.items()}
    return intent.owned(SECRET, name, role, {"type": "kubernetes.io/tls", "data": data})
