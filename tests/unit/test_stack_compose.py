"""docker-compose.yml: valid, and what viewtail needs of it. The schema is that of the Compose Specification
(Apache-2.0), as docker-compose 1.29 carries it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml

from stack import containers, kafka, mariadb, mysql
from stack.places import CHECKOUT

FILE = CHECKOUT / "docker-compose.yml"
SCHEMA = CHECKOUT / "tests/data/compose_spec.json"
MYSQL_FLAGS_OF_THE_MACHINE = ("--bind-address=", "--socket=", "--pid-file=")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return parsed


def test_it_follows_the_compose_specification(compose: dict[str, Any]) -> None:
    jsonschema.Draft201909Validator(json.loads(SCHEMA.read_text())).validate(compose)


def test_the_schema_refuses_what_compose_refuses(compose: dict[str, Any]) -> None:
    broken = {**compose, "services": {"mysql": {"imagee": "mysql"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft201909Validator(json.loads(SCHEMA.read_text())).validate(broken)


def test_docker_itself_accepts_it() -> None:
    if not containers.has_compose():
        pytest.skip("docker compose is not on this machine; the schema is checked in any case")
    done = subprocess.run(
        ["docker", "compose", "--file", str(FILE), "--profile", "*", "config", "--quiet"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_service_says_when_it_is_ready(compose: dict[str, Any]) -> None:
    servers = {"mysql", "mariadb", "redis", "elasticsearch", "kafka"}
    assert set(compose["services"]) == servers | {"viewtail", "tailer", "projector"}
    for name, service in compose["services"].items():
        assert service["healthcheck"]["test"], name


def test_everything_a_service_refers_to_is_declared(compose: dict[str, Any]) -> None:
    services = compose["services"]
    named = [mount.split(":")[0] for service in services.values() for mount in service["volumes"]]
    assert {name for name in named if name[0] not in "./$"} == set(compose["volumes"])
    for service in services.values():
        for needed, condition in service.get("depends_on", {}).items():
            assert "healthcheck" in services[needed]
            assert condition == {"condition": "service_healthy"}


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_the_sources_have_the_flags_of_the_local_servers(compose: dict[str, Any], name: str) -> None:
    defaults = {"mysql": mysql, "mariadb": mariadb}[name].DEFAULTS
    expected = {flag for flag in defaults if not flag.startswith(MYSQL_FLAGS_OF_THE_MACHINE)}
    assert set(compose["services"][name]["command"]) == expected


def test_the_broker_has_the_settings_of_the_local_one(compose: dict[str, Any]) -> None:
    broker = compose["services"]["kafka"]
    named = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in kafka.DEFAULTS.items()}
    assert named.items() <= broker["environment"].items()
    assert broker["image"] == f"apache/kafka:{kafka.VERSION}"


def test_the_fleet_has_one_that_publishes_and_others_that_read_what_it_publishes(compose: dict[str, Any]) -> None:
    tailer, projector = (compose["services"][name] for name in ("tailer", "projector"))
    assert tailer["command"] == ["run", "--role", "tail"]
    assert projector["command"] == ["run", "--role", "project"]
    assert projector["environment"]["VIEWTAIL_SOURCE__URL"] == tailer["environment"]["VIEWTAIL_KAFKA__URL"]
    assert projector["environment"]["VIEWTAIL_MYSQL__URL"] == tailer["environment"]["VIEWTAIL_SOURCE__URL"]


def test_no_port_is_open_to_other_machines(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
