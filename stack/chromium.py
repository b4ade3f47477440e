"""Chromium from the machine's own Debian release: its headless shell, to see pages as a person's browser shows them.

It is no server. It starts its own executable again for each page, so it cannot be started through a loader of its own
as the servers are: the machine's loader and C library run it, which are of the same release.
"""

from __future__ import annotations

from pathlib import Path

from . import archives
from .places import install_once

PACKAGES = (
    "chromium-headless-shell",
    *("fonts-dejavu-core", "fonts-inter"),
    *("libwayland-client0", "libxcb-shm0"),  # it looks for them, and would take the machine's
)
# The C library is the machine's; the others are programs for a desktop, with a compiler for its graphics.
_LEFT_OUT = ("libc6", "x11-utils", "xdg-utils")
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Inter</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>serif</family><prefer><family>DejaVu Serif</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


def install() -> Path:
    """The prefix that holds Chromium, its libraries and its fonts; downloaded on first use (about 110 MB)."""
    return install_once("chromium", _build)


def executable() -> Path:
    """The program, which needs `environment` too."""
    return install() / "usr/lib/chromium/chromium-headless-shell"


def environment() -> dict[str, str]:
    """What the program needs in its environment, beside the caller's own: only what came with it is used."""
    prefix = install()
    libraries = [*archives.library_directories(prefix), *prefix.glob("usr/lib/*/pulseaudio")]
    return {
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "FONTCONFIG_FILE": str(prefix / "fonts.conf"),
        "XDG_CACHE_HOME": str(prefix / "cache"),  # an index of the fonts
    }


def _build(into: Path) -> None:
    archives.unpack("chromium", PACKAGES, into, without=_LEFT_OUT)
    (into / "fonts.conf").write_text(_FONTS)
