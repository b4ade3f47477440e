"""A certificate authority of a test's own, and the certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

HERE: tuple[x509.GeneralName, ...] = (x509.IPAddress(ipaddress.ip_address("127.0.0.1")),)
DAY = datetime.timedelta(days=1)
_NOW = datetime.datetime.now(datetime.UTC)
_PEM = serialization.Encoding.PEM


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Signs for servers and for clients."""

    def __init__(self, name: str) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._name = _named(name)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self._name, self._key, DAY).add_extension(constraints, critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256())

    def _builder(self, name: x509.Name, key: rsa.RSAPrivateKey, valid: datetime.timedelta) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - 10 * DAY)
            .not_valid_after(_NOW + valid)
        )

    def write(
        self,
        folder: Path,
        names: Sequence[x509.GeneralName] = (),
        *,
        subject: str = "server",
        valid: datetime.timedelta = DAY,
    ) -> Path:
        """ca.pem, cert.pem and key.pem, and both.pem of the last two: of a server of these names, or of a client.

        `valid`: from now on; a negative one has expired.
        """
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        builder = self._builder(_named(subject), key, valid)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)
        secret = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.pem").write_bytes(self.certificate.public_bytes(_PEM))
        (folder / "cert.pem").write_bytes(signed)
        (folder / "key.pem").write_bytes(secret)
        (folder / "both.pem").write_bytes(secret + signed)
        return folder
