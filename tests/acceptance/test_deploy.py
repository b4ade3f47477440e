"""The files of deploy/ with real servers: what they ask for is served, and what they start runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import pymysql
import pytest
import redis
import yaml

import stack.mysql
import stack.redis
from stack import Server
from stack.server import free_port
from tests.support.queries import Sample, missing, samples
from tests.support.running import CLEANING, Run, clean_environment, wait_for

CHECKOUT = Path(__file__).resolve().parents[2]
DEPLOY = CHECKOUT / "deploy"
PASSWORD = "of the Secret"
VIEWS = """
from viewtail import Entity, RedisHash, Topic

user = Entity("deployed.user")
views = [Topic("deployed.user", user, partitions=2, compact=False), RedisHash("deployed", user, fields=["name"])]
"""

pytestmark = [pytest.mark.slow, pytest.mark.mysql, pytest.mark.redis]


def execute(server: Server, *statements: str) -> list[tuple[Any, ...]]:
    session = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)
    with closing(session), session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


# -- the dashboard and the alerts --------------------------------------------------------------------------------------


def expressions() -> list[tuple[str, str]]:
    """Every expression, and the text that shows labels of its result."""
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    found = [
        (target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    for variable in dashboard["templating"]["list"]:
        query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert query is not None
        found.append((query[1], f"{{{{{query[2]}}}}}"))
    (group,) = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"]
    return found + [(rule["expr"], " ".join(rule["annotations"].values())) for rule in group["rules"]]


@pytest.mark.kafka
def test_every_metric_and_label_of_the_dashboard_and_the_alerts_is_served(
    mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    execute(
        mysql_server,
        "DROP DATABASE IF EXISTS deployed",
        "DROP DATABASE IF EXISTS deployed_views",
        "CREATE DATABASE deployed",
        "CREATE TABLE deployed.user (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60))",
        "INSERT INTO deployed.user (name) VALUES ('ada'), ('grace')",
    )
    ports = {}
    with ExitStack() as runs:
        for role, source in (("tail", mysql_server.url), ("project", kafka_server.url)):
            ports[role] = free_port()
            (tmp_path / role).mkdir()
            environment = {
                "VIEWTAIL_SOURCE__URL": source,
                "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/deployed_views",
                "VIEWTAIL_REDIS__URL": redis_server.url,
                "VIEWTAIL_KAFKA__URL": kafka_server.url,
                "VIEWTAIL_METRICS__PORT": str(ports[role]),
                **CLEANING,  # it proves the views
            }
            run = Run(tmp_path / role, VIEWS, environment)
            runs.callback(run.kill)
            run.start("--role", role)

        def served() -> list[Sample]:
            return [sample for port in ports.values() for sample in samples(ask(port, "/metrics")[1])]

        def is_complete() -> bool:
            found = served()
            lacking = [text for expression, shown in expressions() for text in missing(expression, shown, found)]
            assert lacking == []
            # How long MySQL keeps its binlogs, and Kafka the messages of the topic.
            kept = {one.labels["pipeline"] for one in found if one.name == "viewtail_source_margin_ratio"}
            assert kept == {"kafka", "deployed.user.0.redis", "deployed.user.1.redis"}
            return True

        assert len(expressions()) > 25
        wait_for("all is served", is_complete, 90)


# -- the manifest ------------------------------------------------------------------------------------------------------


class Pod:
    """The manifest's container, run as a process of this machine."""

    def __init__(self, folder: Path, servers: dict[str, str], port: int) -> None:
        objects = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text())}
        spec = objects["Deployment"]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        self.port = port
        self.probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")}
        (secrets,) = (one["projected"]["sources"] for one in spec["volumes"] if one["name"] == "secrets")
        paths = {item["key"]: item["path"] for one in secrets for item in one["secret"]["items"]}
        contents = {
            "views": objects["ConfigMap"]["data"],
            "secrets": {paths["source-password"]: PASSWORD},
            "tmp": {},
        }
        mounts = {one["mountPath"]: folder / one["name"] for one in container["volumeMounts"]}
        for path, place in mounts.items():
            place.mkdir(parents=True)
            for name, text in contents[place.name].items():
                (place / name).write_text(text)
            assert path.startswith("/")
        env = {one["name"]: one["value"] for one in container["env"]}
        assert env["VIEWTAIL_METRICS__PORT"] == "9464"
        for name, address in servers.items():
            (variable,) = (one for one in env if name in env[one])
            env[variable] = env[variable].replace(name, address)
        env["VIEWTAIL_SECRETS_DIR"] = str(mounts[env["VIEWTAIL_SECRETS_DIR"]])
        # Both replicas are on one machine here.
        env |= {"VIEWTAIL_METRICS__PORT": str(port), "VIEWTAIL_METRICS__HOST": "127.0.0.1"}
        program, *arguments = [*container["command"], *container["args"]]
        assert f'ENTRYPOINT ["{program}"]' in (CHECKOUT / "Dockerfile").read_text()
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name(program)), *arguments],
                cwd=mounts[container["workingDir"]],
                env={**clean_environment(), **env, "TMPDIR": str(mounts["/tmp"])},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def probe(self, name: str) -> tuple[int, dict[str, Any]]:
        code, body = ask(self.port, self.probes[name])
        return code, json.loads(body)

    @property
    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as at_end:
        mysql = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
        at_end.callback(mysql.kill)
        store = stack.redis.start(tmp_path_factory.mktemp("redis"))
        at_end.callback(store.kill)
        yield mysql, store


def test_the_manifest_runs_twice_with_its_files_and_the_second_takes_over(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    mysql, store = servers
    addresses = {
        "mysql.shop.svc:3306": f"{mysql.host}:{mysql.port}",
        "redis.shop.svc:6379": f"{store.host}:{store.port}",
    }
    readme = (CHECKOUT / "README.md").read_text()
    grants = re.findall(r"^(GRANT .+?);", readme, re.MULTILINE)
    assert len(grants) == 3
    with ExitStack() as at_end:
        pods = []
        for name in ("one", "two"):
            pod = Pod(tmp_path / name, addresses, free_port())
            at_end.callback(pod.process.wait)
            at_end.callback(pod.process.kill)
            if not pods:
                execute(
                    mysql,
                    "CREATE DATABASE shop",
                    "CREATE TABLE shop.user (id INT PRIMARY KEY, username VARCHAR(40), email VARCHAR(100))",
                    "INSERT INTO shop.user VALUES (1, 'ada', 'ada@example.org')",
                    f"CREATE USER viewtail IDENTIFIED BY '{PASSWORD}'",
                    *grants,
                )
            pods.append(pod)
            wait_for("it is ready", lambda: pods[-1].probe("readiness")[0] == 200, 40)
        one, two = pods
        wait_for("the second stands by", lambda: two.probe("readiness")[1]["standby"] == ["mysql", "redis"])
        assert one.probe("liveness")[0] == two.probe("liveness")[0] == 200

        def hashes() -> dict[Any, Any]:
            with redis.Redis(port=store.port, decode_responses=True) as client:
                return client.hgetall("user:1")  # type: ignore[return-value]

        wait_for("the views are filled", lambda: hashes().get("username") == "ada")
        one.process.terminate()
        assert one.process.wait(10) == 0, one.log
        execute(mysql, "UPDATE shop.user SET username = 'augusta', email = 'augusta@example.org'")
        wait_for("the second took over", lambda: hashes()["username"] == "augusta")
        index = "SELECT id FROM viewtail.user_by_email WHERE email = 'augusta@example.org'"
        wait_for("both stores have it", lambda: execute(mysql, index) == [(1,)])
        wait_for("it does not stand by any more", lambda: two.probe("readiness")[1]["standby"] == [])
        two.process.terminate()
        assert two.process.wait(10) == 0, two.log
        assert not [name for name in os.listdir(tmp_path / "two" / "tmp") if name.startswith("viewtail")]


def test_what_a_service_called_viewtail_would_set_is_refused(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """Why the manifest has enableServiceLinks: false."""
    (tmp_path / "views.py").write_text("views = []")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("viewtail")), "run"],
        cwd=tmp_path,
        env={**clean_environment(), "VIEWTAIL_SOURCE__URL": servers[0].url, "VIEWTAIL_PORT": "tcp://10.0.0.1:9464"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2 and "VIEWTAIL_PORT" in done.stderr
