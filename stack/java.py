"""A JDK and Maven for Elasticsearch and Kafka: those of the machine, else Debian's, unpacked beside the system.

Elasticsearch wants Java 21 or newer with the module jdk.incubator.vector, which a cut-down runtime lacks. Debian's
package makes its trust store when it is installed; unpacked only, it gets one here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import archives
from .errors import ServerUnavailable
from .places import install_once

NEEDED_MODULE = "jdk.incubator.vector"
OLDEST_VERSION = 21
_PACKAGE = "openjdk-25-jre-headless"


def home() -> Path:
    """The first Java that is fit: $ES_JAVA_HOME, $JAVA_HOME, /usr/lib/jvm, /opt, Debian's newest (62 MB)."""
    for candidate in _homes_of_the_machine():
        if _is_fit(candidate):
            return candidate
    try:
        candidate = _unpacked_home()
    except ServerUnavailable as error:
        raise ServerUnavailable(f"{_what_is_missing()}\nDebian's own could not be had: {error}") from error
    if not _is_fit(candidate):
        raise ServerUnavailable(f"{_what_is_missing()}\nDebian's own, {candidate}, does not run here.")
    return candidate


def maven() -> Path:
    """The program mvn of the machine, else Debian's; it needs JAVA_HOME set."""
    found = shutil.which("mvn")
    if found is not None:
        return Path(found)
    return install_once("maven", _unpack_maven) / "usr/share/maven/bin/mvn"


def _homes_of_the_machine() -> Iterator[Path]:
    for variable in ("ES_JAVA_HOME", "JAVA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    for parent in ("/usr/lib/jvm", "/opt"):
        yield from sorted(path for path in Path(parent).glob("*") if path.is_dir() and not path.is_symlink())


def _is_fit(candidate: Path) -> bool:
    java = candidate / "bin/java"
    if not java.is_file():
        return False
    try:
        done = subprocess.run([str(java), "--list-modules"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r"^java\.base@(\d+)", done.stdout, re.MULTILINE)
    return version is not None and int(version[1]) >= OLDEST_VERSION and f"{NEEDED_MODULE}@" in done.stdout


def _unpacked_home() -> Path:
    return _home_below(install_once("java", _unpack_java))


def _home_below(prefix: Path) -> Path:
    return next(path for path in sorted(prefix.glob("usr/lib/jvm/*")) if not path.is_symlink() and path.is_dir())


def _unpack_java(into: Path) -> None:
    archives.unpack("java", [_PACKAGE], into, archives.NEWEST_SUITE)
    archives.relink(into)
    store = into / "etc/ssl/certs/java/cacerts"
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(_trust_store(_certificates(into)))
    # Elasticsearch's launcher starts bin/java by its path, and Java itself starts jspawnhelper.
    for program in ("bin/java", "lib/jspawnhelper"):
        archives.wrap(into, _home_below(into) / program)


def _certificates(prefix: Path) -> list[bytes]:
    """The certificates this machine trusts, else those of the package, as DER."""
    bundle = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    files = [bundle] if bundle.exists() else sorted(prefix.glob("usr/share/ca-certificates/**/*.crt"))
    pem = re.findall(f"{ssl.PEM_HEADER}.*?{ssl.PEM_FOOTER}", "\n".join(map(Path.read_text, files)), re.DOTALL)
    return [ssl.PEM_cert_to_DER_cert(one) for one in pem]


def _trust_store(certificates: list[bytes]) -> bytes:
    """A JKS key store, version 2 (OpenJDK, sun.security.provider.JavaKeyStore), with the customary password."""
    content = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        content += struct.pack(">I", 2) + _utf(f"ca{number}") + struct.pack(">Q", 0) + _utf("X.509")
        content += struct.pack(">I", len(certificate)) + certificate
    return content + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _unpack_maven(into: Path) -> None:
    archives.unpack("maven", ["maven"], into)
    archives.relink(into)


def _what_is_missing() -> str:
    return (
        f"java: found none of version {OLDEST_VERSION} or newer with the module {NEEDED_MODULE} in $ES_JAVA_HOME, "
        "$JAVA_HOME, /usr/lib/jvm or /opt. Install a full JDK (Temurin 25, for one) and set ES_JAVA_HOME to its "
        "folder, or use a container engine: python3 -m stack up --engine docker"
    )
