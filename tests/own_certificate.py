"""A certificate of this machine's loopback that signs itself."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_certificate(folder: Path) -> Path:
    """The file of a new one; its key is in ``key.pem`` beside it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    day, now = dt.timedelta(days=1), dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    certificate = builder.add_extension(address, critical=True).sign(key, hashes.SHA256())
    file = folder / "certificate.pem"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file
