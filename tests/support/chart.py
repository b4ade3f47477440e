"""The Helm chart, linted and rendered by a real helm; `python -m tests.support.chart` writes deploy/kubernetes.yml.

The manifest is the chart with the values of ci/shop-values.yaml, without the labels that only Helm reads.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from stack import helm
from stack.places import CHECKOUT

CHART = CHECKOUT / "deploy/helm/viewtail"
MANIFEST = CHECKOUT / "deploy/kubernetes.yml"
_HEAD = """\
# viewtail, twice: one process works, the other stands by. `make manifest` writes this file from the Helm chart beside
# it, which has more choices. docs/deployments.md, Kubernetes, says what to change: addresses, views.py and the name
# of your image. The password: kubectl create secret generic viewtail --from-literal=source-password=...
"""
_OF_HELM = re.compile(r"^(?:# Source: | *(?:app\.kubernetes\.io/managed-by|helm\.sh/chart|checksum/views): ).*\n", re.M)


def template(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `helm template` says with the chart's defaults and these arguments."""
    return _helm("template", "viewtail", str(CHART), *arguments)


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `helm lint --strict` says, likewise."""
    return _helm("lint", "--strict", str(CHART), *arguments)


def notes(folder: Path, release: str, *arguments: str) -> str:
    """What helm says after the installation, rendered as an object: `helm template` leaves it out."""
    copied = shutil.copytree(CHART, folder / "chart")
    text = (copied / "templates/NOTES.txt").read_text()
    (copied / "templates/notes.yaml").write_text(
        f'{{{{- define "notes" }}}}{text}{{{{ end }}}}\nkind: Notes\ntext: {{{{ include "notes" . | quote }}}}\n'
    )
    done = _helm("template", release, str(copied), "--show-only=templates/notes.yaml", *arguments)
    assert done.returncode == 0, done.stderr
    said: str = yaml.safe_load(done.stdout)["text"]
    return said


def package(into: Path) -> subprocess.CompletedProcess[str]:
    """The chart as an archive."""
    return _helm("package", str(CHART), "--destination", str(into))


def rendered(*arguments: str) -> list[dict[str, Any]]:
    """The objects of the chart; fails where helm refuses the values."""
    done = template(*arguments)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one is not None]


def values(name: str) -> str:
    """The argument that gives one of the chart's files of values."""
    return f"--values={CHART}/ci/{name}-values.yaml"


def manifest() -> str:
    """What deploy/kubernetes.yml is to hold."""
    done = template(values("shop"))
    assert done.returncode == 0, done.stderr
    return _HEAD + re.sub(r" +$", "", _OF_HELM.sub("", done.stdout), flags=re.M)


def _helm(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(helm.install()), *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True)


if __name__ == "__main__":
    MANIFEST.write_text(manifest())
    print(f"wrote {Path(MANIFEST).relative_to(CHECKOUT)}")
