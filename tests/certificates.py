"""Self-signed certificates for servers of the tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE_FOLDER = "/etc/penstock/"


def write_certificate(certificate: Path, key_file: Path, name: str = "penstock tests") -> None:
    """Writes a self-signed certificate for 127.0.0.1 and its private key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = dt.datetime.now(dt.UTC)
    created = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - dt.timedelta(days=1))
        .not_valid_after(today + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(created.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def with_certificate(settings: str, folder: Path) -> str:
    """Replaces the certificate files of examples, which do not exist, by a new certificate and its private key."""
    if EXAMPLE_FOLDER not in settings:
        return settings
    write_certificate(folder / "tls.crt", folder / "tls.key")
    return settings.replace(EXAMPLE_FOLDER, f"{folder}/")
