"""The lists of import-linter in pyproject.toml have every package and module that there is: none stays unchecked."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
CONTRACTS: dict[str, dict[str, Any]] = {
    contract["name"]: contract
    for contract in tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
LAYERS = {
    module.strip()
    for layer in CONTRACTS["Lower packages never import higher ones"]["layers"]
    for module in layer.split(":")
}


def test_the_layers_have_every_package_and_every_module_of_viewtail() -> None:
    packages = {place.parent.name for place in CHECKOUT.glob("viewtail/*/__init__.py")}
    modules = {place.stem for place in CHECKOUT.glob("viewtail/*.py")} - {"__init__"}
    assert {f"viewtail.{name}" for name in packages | modules} | {"offsets", "ingest", "projectors"} == LAYERS


def test_the_linter_knows_every_store_and_every_module_beside_them() -> None:
    folders = {f"projectors.stores.{place.parent.name}" for place in CHECKOUT.glob("projectors/stores/*/__init__.py")}
    assert set(CONTRACTS["Stores are independent of each other"]["modules"]) == folders
    shared = CONTRACTS["What every store shares knows no store but through the registry"]
    beside = {f"projectors.{place.stem}" for place in CHECKOUT.glob("projectors/*.py")} - {"projectors.__init__"}
    assert set(shared["source_modules"]) >= beside
    assert set(shared["forbidden_modules"]) == folders


def test_the_linter_knows_every_source() -> None:
    folders = {f"ingest.{place.parent.name}" for place in CHECKOUT.glob("ingest/*/kind.py")}
    assert set(CONTRACTS["Sources are independent of each other"]["modules"]) == folders
    assert set(CONTRACTS["Only the registry of sources knows a source"]["forbidden_modules"]) == folders
