"""Says what is wrong with TLS between viewtail and a server, from the words of OpenSSL, and what to do about it.

One table for every kind of server: MySQL, Redis, Elasticsearch and Kafka are all spoken to over OpenSSL.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

_CHECK_CA = (
    "set tls_ca to the authority that signed the server's certificate, which must name this host and be valid now"
)
_SIGNED_BY = "no authority that is trusted has signed the server's certificate: set tls_ca to the one that did"
# Of the server's certificate, as our side judged it: the first that is found in the client's words counts.
_UNTRUSTED = {
    "certificate has expired": "the server's certificate has expired: renew it on the server",
    "not yet valid": "the server's certificate is not valid yet: look at the clocks of both machines",
    "ip address mismatch": "the server's certificate names other hosts: use a host name that is in it as the address",
    "hostname mismatch": "the server's certificate names other hosts: use a host name that is in it as the address",
    "is not valid for": "the server's certificate names other hosts: use a host name that is in it as the address",
    "self-signed certificate": _SIGNED_BY,
    "self signed certificate": _SIGNED_BY,
    "unable to get local issuer": _SIGNED_BY,
    "certificate verify failed": _CHECK_CA,
    "certificate_verify_failed": _CHECK_CA,
    "could not be verified": _CHECK_CA,
}
# Of the client's certificate, as the server judged it: TLS alerts.
_REFUSED = {
    "certificate required": "the server wants a client certificate, and got none: set tls_cert and tls_key",
    "certificate expired": "the server says that the client certificate, tls_cert, has expired",
    "unknown ca": "no authority that the server trusts has signed the client certificate, tls_cert",
    "bad certificate": "the server does not take the client certificate: check tls_cert and tls_key",
    "certificate unknown": "the server does not take the client certificate: check tls_cert and tls_key",
    "unsupported certificate": "the server does not take the client certificate: it must be one for TLS clients",
    "handshake failure": "the two agree on no way to encrypt, or the server wants a client certificate: check tls_cert",
}
_OTHERWISE = {
    "wrong version number": "no TLS is spoken at that port: check the port, or set tls = false",
    "record layer failure": "no TLS is spoken at that port: check the port, or set tls = false",
    "packet length too long": "no TLS is spoken at that port: check the port, or set tls = false",
}
# What a connection ends with where the server did not like the client certificate and its alert was lost.
_ENDED = ("eof occurred in violation", "unexpected eof", "ssleoferror")
_WORDLESS = "it ended TLS without a word: perhaps "
_CUT = (*_ENDED, "connection reset", "broken pipe", "closed", "lost connection", "isconnected")


def why_refused(said: str, certificate: Path | None) -> str:
    """Why TLS failed, of a client's words; '' where they do not say it. `certificate`: the client's own, if any.

    A server that refuses the client certificate may just hang up: then the certificate itself is looked at.
    """
    words = said.lower().replace("_", " ").replace("alert ", "")
    for table in (_UNTRUSTED, _OTHERWISE):
        if found := _in(table, said.lower()) or _in(table, words):
            return found
    found = _in(_REFUSED, words)
    if certificate is None or not (found or any(end in words for end in _CUT)):
        return found
    if (out_of_date := _out_of_date(certificate)) is not None:
        return out_of_date
    return f"{found}. It is of {shown(certificate)}" if found else ""


def why_ended(said: str, certificate: Path | None) -> str:
    """Return why a server may have ended TLS without a word; '' where it did not."""
    if not any(end in said.lower() for end in _ENDED):
        return ""
    if certificate is None:
        return f"{_WORDLESS}it wants a client certificate, and got none: set tls_cert and tls_key"
    return f"{_WORDLESS}no authority that the server trusts has signed the client certificate, of {shown(certificate)}"


def _in(table: dict[str, str], words: str) -> str:
    return next((why for part, why in table.items() if part in words), "")


def _out_of_date(path: Path) -> str | None:
    read = _read(path)
    if read is None:
        return None
    now, named = datetime.datetime.now(datetime.UTC), f"the client certificate, tls_cert ({path}),"
    if read.not_valid_after_utc < now:
        return f"{named} expired on {read.not_valid_after_utc:%Y-%m-%d}: renew it"
    if read.not_valid_before_utc > now:
        return f"{named} is not valid before {read.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: look at the clocks"
    return None


def shown(path: Path) -> str:
    """Subject and issuer, as MySQL writes them in REQUIRE SUBJECT and ISSUER, and until when it is valid."""
    read = _read(path)
    if read is None:
        return f"{path}, which could not be read"
    until = f"{read.not_valid_after_utc:%Y-%m-%d}"
    return f"subject {_line(read.subject)!r}, issuer {_line(read.issuer)!r}, valid until {until}"


def _line(name: x509.Name) -> str:
    return "".join(f"/{one.rfc4514_attribute_name}={one.value!s}" for one in name)


def _read(path: Path) -> x509.Certificate | None:
    from cryptography import x509  # several MiB, which a worker needs only where this goes wrong

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None
