"""Elasticsearch 9.2: the server that its own integration tests run, fetched with Maven, on a full JDK.

It lacks the optional modules (`GET /`, reindex, painless: see STACK.md). It refuses to run as root; there it runs
in a user namespace, where root's files stay its own but its user id is not 0.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from . import java, maven
from .errors import ServerUnavailable
from .places import install_once, progress
from .server import HOST, Launch, Server, free_port

VERSION = "9.2.0"
HEAP = "512m"
_SHA256 = "bf44938a0490ba2a303d39c9cb64b38963dd08c812ce93e10816e878585bcb6b"
_GROUP = "org.elasticsearch.distribution.integ-test-zip"


def install() -> Path:
    """Elasticsearch's home; downloaded on first use (99 MB). Raises ServerUnavailable where that fails."""
    return install_once(f"elasticsearch-{VERSION}", _download)


def start(directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
    """Start a node with its data in `directory` and wait until its cluster is at least yellow.

    `port` None takes a free one; `options` are the launcher's own (`-Ecluster.name=x`). A data folder that is there
    is used again.
    """
    server = prepare(directory, port, options)
    server.start()
    return server


def prepare(directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
    """What `start` does, without starting it."""
    directory = directory.absolute()
    home, java_home = install(), java.home()
    chosen = free_port() if port is None else port
    _lay_out(home, directory)
    launch = Launch(
        name="elasticsearch",
        url=f"http://{HOST}:{chosen}",
        port=chosen,
        directory=directory,
        argv=(*_not_as_root(), str(home / "bin/elasticsearch"), *_settings(directory, chosen), *options),
        environment={
            "ES_JAVA_HOME": str(java_home),
            "ES_JAVA_OPTS": f"-Xms{HEAP} -Xmx{HEAP} {os.environ.get('ES_JAVA_OPTS', '')}".rstrip(),
            "ES_PATH_CONF": str(directory / "config"),
            "ES_TMPDIR": str(directory / "tmp"),
        },
        is_ready=lambda: _answers(chosen),
        pid_file=directory / "pid",
    )
    return Server(launch)


def _download(into: Path) -> None:
    archive = _fetch_archive()
    progress("elasticsearch: unpacking")
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            _extract(bundle, member, into)
    archive.unlink()  # the unpacked copy is kept; the archive would double its size


def _fetch_archive() -> Path:
    progress("elasticsearch: downloading 99 MB ...")
    archive = maven.file("elasticsearch", f"{_GROUP}:elasticsearch:{VERSION}:zip")
    _require_digest(archive)
    return archive


def _require_digest(archive: Path) -> None:
    digest = maven.sha256(archive)
    if digest != _SHA256:
        archive.unlink()
        raise ServerUnavailable(
            f"elasticsearch: {archive.name} has SHA-256 {digest}, expected {_SHA256}; it was removed. "
            "Try again, and look at the repository that Maven is set up to use if it happens again."
        )


def _extract(bundle: zipfile.ZipFile, member: zipfile.ZipInfo, into: Path) -> None:
    # The archive has one folder at its top; zipfile does not restore the permissions it carries.
    inner = member.filename.partition("/")[2]
    if not inner or member.is_dir():
        (into / inner).mkdir(parents=True, exist_ok=True)
        return
    target = into / inner
    target.parent.mkdir(parents=True, exist_ok=True)
    with bundle.open(member) as packed, target.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    target.chmod(0o755 if (member.external_attr >> 16) & 0o100 else 0o644)


def _lay_out(home: Path, directory: Path) -> None:
    for part in ("data", "logs", "tmp", "config"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    for name in ("jvm.options", "log4j2.properties"):
        if not (directory / "config" / name).exists():
            shutil.copy(home / "config" / name, directory / "config" / name)
    (directory / "config/elasticsearch.yml").touch()


def _settings(directory: Path, port: int) -> tuple[str, ...]:
    return (
        *("-p", str(directory / "pid")),
        "-Ediscovery.type=single-node",
        "-Expack.security.enabled=false",
        "-Ecluster.routing.allocation.disk.threshold_enabled=false",  # a full disk would make indices read-only
        f"-Epath.data={directory / 'data'}",
        f"-Epath.logs={directory / 'logs'}",
        f"-Enetwork.host={HOST}",
        f"-Ehttp.port={port}",
        f"-Etransport.port={free_port()}",
    )


def _not_as_root() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    # Outside the namespace it is still root, so it reads and writes below private folders such as pytest's.
    wrapper = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    if shutil.which("unshare") and subprocess.run([*wrapper, "true"], capture_output=True).returncode == 0:
        return wrapper
    raise ServerUnavailable(
        "elasticsearch: it refuses to run as root, and this machine allows no user namespace (`unshare --user`). "
        "Run as an ordinary user, or use a container engine: python3 -m stack up --engine docker"
    )


def _answers(port: int) -> bool:
    url = f"http://{HOST}:{port}/_cluster/health?wait_for_status=yellow&timeout=1s"
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
