"""Certificates for one run: the hops speak mutual TLS, because only TLS notices a bit that a link has turned over."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.wire.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, ROUTER, STAGE, TlsDirectory

_DAY = datetime.timedelta(days=1)


def issue(folder: Path, model: str = "chaos") -> dict[str, TlsDirectory]:
    """An authority and a certificate for each role of the pipeline `model`, for 127.0.0.1."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chaos")])
    authority = (
        _builder(name, name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    made = {}
    for role in (ROUTER, STAGE):
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.UniformResourceIdentifier(f"spiffe://localhost/ns/chaos/shoal/{model}/{role}"),
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
        leaf = (
            _builder(subject, name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        directory = folder / role
        directory.mkdir(parents=True)
        (directory / AUTHORITY_FILE).write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        (directory / CERTIFICATE_FILE).write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
        (directory / KEY_FILE).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        made[role] = TlsDirectory(directory)
    return made


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 30 * _DAY)
    )
