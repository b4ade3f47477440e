"""Percona Toolkit from Debian: the real pt-online-schema-change, run with the Perl that comes with it.

Nothing of it is a server; tests migrate tables with it while viewtail follows them.
"""

from __future__ import annotations

from pathlib import Path

from . import archives
from .places import install_once

PACKAGES = ("percona-toolkit", "libdbd-mysql-perl")


def install() -> Path:
    """The prefix that holds the toolkit and its Perl; downloaded on first use (about 35 MB)."""
    return install_once("percona", lambda into: archives.unpack("percona", PACKAGES, into, archives.NEWEST_SUITE))


def tool(program: str) -> tuple[list[str], dict[str, str]]:
    """The argv prefix of one of the toolkit's programs, and the environment that it needs beside the caller's."""
    prefix = install()
    modules = [
        str(path)
        for pattern in (
            "usr/lib/*/perl5/5*",
            "usr/share/perl5",
            "usr/lib/*/perl/5*",
            "usr/share/perl/5*",
            "usr/lib/*/perl-base",
        )
        for path in sorted(prefix.glob(pattern))
        if path.is_dir() and not path.is_symlink()
    ]
    argv = [*archives.command(prefix, "usr/bin/perl"), str(prefix / "usr/bin" / program)]
    (plugins,) = prefix.glob("usr/lib/*/libmariadb3/plugin")
    return argv, {"PERL5LIB": ":".join(modules), "MARIADB_PLUGIN_DIR": str(plugins)}
