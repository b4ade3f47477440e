"""Other Pythons than the one that runs, from Debian's newest suite: the wheel is tried with each.

`python -m venv` works with them as with any other. A program of such an environment is started through links and
scripts that end at the prefix's own C library.
"""

from __future__ import annotations

from pathlib import Path

from . import archives
from .errors import ServerUnavailable
from .places import install_once

NEWEST = "3.14"
VERSIONS = ("3.13", NEWEST)  # that Debian's newest suite has
_WHEELS = "sysconfig.get_config_var('WHEEL_PKG_DIR')"  # ensurepip's pip lies at a path of the machine


def install(version: str = NEWEST) -> Path:
    """The interpreter of a version, "3.14"; downloaded on first use (about 21 MB).

    Raises ServerUnavailable for one that Debian does not have.
    """
    if version not in VERSIONS:
        raise ServerUnavailable(
            f"python: Debian's newest suite has no Python {version}, only {' and '.join(VERSIONS)}; "
            "name the path of an interpreter"
        )
    return install_once(f"python{version}", lambda into: _unpack(version, into)) / _program(version)


def _unpack(version: str, into: Path) -> None:
    archives.unpack(f"python{version}", [f"python{version}-venv"], into, archives.NEWEST_SUITE)
    archives.wrap(into, into / _program(version))
    ensurepip = into / "usr/lib" / f"python{version}" / "ensurepip/__init__.py"
    text = ensurepip.read_text()
    if _WHEELS not in text:
        raise ServerUnavailable(
            f"python: {ensurepip.name} of Python {version} asks for its pip in a way not known here"
        )
    ensurepip.write_text(text.replace(_WHEELS, "sys.base_prefix + '/share/python-wheels'"))


def _program(version: str) -> str:
    return f"usr/bin/python{version}"
