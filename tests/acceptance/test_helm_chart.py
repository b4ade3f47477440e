"""The Helm chart, by a real helm: what it renders is what Kubernetes knows and viewtail reads, and wrong values are
refused."""

from __future__ import annotations

import copy
import json
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import certifi
import kubernetes_validate
import pytest
import yaml

from stack.places import CHECKOUT
from tests.support import chart
from viewtail.settings import Settings, load

VALUES = sorted(path.name.removesuffix("-values.yaml") for path in (chart.CHART / "ci").iterdir())
KUBERNETES = ("1.27", "1.37")  # the oldest that Chart.yaml names, and the newest whose schemas there are
OF_PROMETHEUS = "monitoring.coreos.com/v1"


def given(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((chart.CHART / "ci" / f"{name}-values.yaml").read_text())
    return parsed


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = one(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    container: dict[str, Any]
    (container,) = pod_of(objects)["containers"]
    return container


@pytest.mark.parametrize("name", [None, *VALUES])
def test_lint_finds_nothing(name: str | None) -> None:
    done = chart.lint(*([] if name is None else [chart.values(name)]))
    assert done.returncode == 0 and "1 chart(s) linted, 0 chart(s) failed" in done.stdout, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", VALUES)
def test_every_object_is_one_that_kubernetes_knows(name: str, version: str) -> None:
    objects = chart.rendered(chart.values(name), "--kube-version", version)
    checked = [each for each in objects if each["apiVersion"] != OF_PROMETHEUS]  # of which no schema is at hand
    assert {"Deployment", "ServiceAccount"} <= {each["kind"] for each in checked}
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)
    misspelt = copy.deepcopy(one(objects, "Deployment"))
    misspelt["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(misspelt, version, strict=True)


def test_an_older_kubernetes_is_refused() -> None:
    done = chart.template(chart.values("image"), "--kube-version", "1.26")
    assert done.returncode and "requires kubeVersion: >=1.27.0-0" in done.stderr


def loaded(name: str, folder: Path) -> Settings:
    """The settings as viewtail reads them in the pod: of its variables, and of the files of its Secrets."""
    objects = chart.rendered(chart.values(name))
    container, pod = container_of(objects), pod_of(objects)
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    if "VIEWTAIL_SOURCES__EU__TLS_CA" in variables:
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "certificates")
        assert variables["VIEWTAIL_SOURCES__EU__TLS_CA"].startswith(f"{mount['mountPath']}/")
        variables["VIEWTAIL_SOURCES__EU__TLS_CA"] = certifi.where()
    secrets = next((volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets"), [])
    if secrets:  # as the kubelet lays them
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "secrets")
        assert variables["VIEWTAIL_SECRETS_DIR"] == mount["mountPath"]
        variables["VIEWTAIL_SECRETS_DIR"] = str(folder)
        (folder / "..data").mkdir()
        for each in secrets:
            (item,) = each["secret"]["items"]
            text = f"{each['secret']['name']}/{item['key']}, which is long"
            (folder / "..data" / item["path"]).write_text(text)
            (folder / item["path"]).symlink_to(Path("..data", item["path"]))
    return load(None, variables)


@pytest.mark.parametrize("name", VALUES)
def test_the_pods_variables_are_the_settings_that_were_given(name: str, tmp_path: Path) -> None:
    settings, values = loaded(name, tmp_path), given(name)
    plain = {key: value for key, value in values["settings"].items() if key not in ("sources", "views")}
    groups = [(getattr(settings, group), members) for group, members in plain.items()]
    groups += [(settings.sources[source], own) for source, own in values["settings"].get("sources", {}).items()]
    assert groups and settings.views == values["settings"].get("views", "views:views")
    for group, members in groups:
        for key, value in members.items():
            if key == "tls_ca":
                continue
            read = getattr(group, key)
            read = read.get_secret_value() if key.endswith("url") else read
            wanted = {"off": 0}.get(value, value) if isinstance(value, str) else value
            assert read == (tuple(wanted) if isinstance(wanted, list) else wanted), key
    for each in values.get("secrets", ()):
        *where, key = each["setting"].split(".")
        group = settings.sources[where[1]] if where[0] == "sources" else getattr(settings, where[0])
        assert getattr(group, key).get_secret_value() == f"{each['secret']}/{each['key']}, which is long"
    assert settings.metrics.host == "0.0.0.0"
    assert settings.metrics.port == values.get("metrics", {}).get("port", 9464)


WRONG = {
    "no place of views.py": (["views.inImage=false"], "views: say where views.py is, once:"),
    "two places": (["views.existingConfigMap=shop"], "views: say where views.py is, once:"),
    "a value that there is not": (["replica=3"], "additional properties 'replica' not allowed"),
    "a role that there is not": (["role=tailer"], "at '/role': value must be one of 'all', 'tail', 'project'"),
    "a number that is a text": (["replicas=two"], "at '/replicas': got string, want integer"),
    "a setting that there is not": (["settings.source.adress=x"], "at '/settings/source': additional properties 'adr"),
    "a group that there is not": (["settings.cassandra.url=x"], "at '/settings': additional properties 'cassandra'"),
    "a setting out of its bounds": (
        ["settings.run.batch_rows=0"],
        "'/settings/run/batch_rows': minimum: got 0, want 1",
    ),
    "a level that there is not": (["settings.logs.level=loud"], "'/settings/logs/level': value must be one of 'debug'"),
    "a password in the open": (["settings.redis.password=pw"], "'/settings/redis': additional properties 'password'"),
    "a password in an address": (
        ["settings.redis.url=redis://me:geheim@cache"],
        "settings.redis.url has a password, which everyone could read in the Deployment. ",
    ),
    "a webhook in the open": (
        ["settings.notify.url=https://hooks.slack.com/services/geheim"],
        "'/settings/notify': additional properties 'url'",
    ),
    "a port that the probes need": (["settings.metrics.port=1"], "at '/settings': additional properties 'metrics'"),
    "a secret of no setting": (
        ["secrets[0].setting=redis.pasword", "secrets[0].secret=a", "secrets[0].key=b"],
        "at '/secrets/0/setting': value must be one of 'source.password', ",
    ),
    "a secret without its key": (
        ["secrets[0].setting=redis.password", "secrets[0].secret=a"],
        "at '/secrets/0': missing property 'key'",
    ),
    "a setting given twice": (
        ["settings.redis.url=redis://h", "secrets[0].setting=redis.url", "secrets[0].secret=a", "secrets[0].key=b"],
        "redis.url is among secrets, and given once more",
    ),
    "a setting of one of several sources given twice": (
        [
            "settings.sources.eu.url=mysql://h",
            *("secrets[0].setting=sources.eu.url", "secrets[0].secret=a", "secrets[0].key=b"),
        ],
        "sources.eu.url is among secrets, and given once more",
    ),
    "a secret given twice": (
        [
            *("secrets[0].setting=redis.url", "secrets[0].secret=a", "secrets[0].key=b"),
            *("secrets[1].setting=redis.url", "secrets[1].secret=a", "secrets[1].key=c"),
        ],
        "redis.url is among secrets, and given once more",
    ),
    "a setting that is a variable of one's own, too": (
        [
            *("extraEnv[0].name=VIEWTAIL_REDIS__URL", "extraEnv[0].value=redis://h"),
            *("secrets[0].setting=redis.url", "secrets[0].secret=a", "secrets[0].key=b"),
        ],
        "redis.url is among secrets, and given once more",
    ),
    "a projector that reads MySQL": (
        ["role=project"],
        "role project reads topics: settings.source.url must be kafka://",
    ),
    "a tailer that reads topics": (
        ["role=tail", "settings.source.url=kafka://h:9092"],
        "role tail reads MySQL: settings.source.url must be mysql://",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_refused_by_its_name(wrong: str) -> None:
    given, said = WRONG[wrong]
    done = chart.template(chart.values("image"), *(f"--set={each}" for each in given))
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "geheim" not in done.stderr


def test_files_come_into_the_pod_as_they_are(tmp_path: Path) -> None:
    texts = {
        "views.py": "  # indented\n\n\tx = '{{ .Values }}'\n\n",
        "more.py": "y = '\u00e9'",
        "viewtail.toml": "# $\n",
    }
    arguments = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        arguments += ["--set-file", f"views.files.{name.replace('.', chr(92) + '.')}={tmp_path / name}"]
    objects = chart.rendered("--set=settings.source.url=mysql://h", *arguments)
    assert one(objects, "ConfigMap")["data"] == texts
    (volume,) = (each for each in pod_of(objects)["volumes"] if each["name"] == "views")
    assert volume["configMap"]["name"] == one(objects, "ConfigMap")["metadata"]["name"]

    def pods() -> object:
        return one(chart.rendered(*arguments), "Deployment")["spec"]["template"]

    before = pods()
    (tmp_path / "views.py").write_text("views = []\n")
    assert pods() != before  # an edit starts the pods again


def test_a_release_for_each_role_runs_it() -> None:
    arguments = {name: container_of(chart.rendered(chart.values(name)))["args"] for name in ("shop", "tail", "project")}
    assert arguments == {
        "shop": ["run"],
        "tail": ["run", "--role", "tail"],
        "project": ["run", "--role", "project"],
    }


def test_prometheus_operator_finds_the_pods_and_the_alerts_of_deploy() -> None:
    objects = chart.rendered(chart.values("everything"))
    rules = yaml.safe_load((CHECKOUT / "deploy/prometheus-rules.yml").read_text())
    assert one(objects, "PrometheusRule")["spec"] == rules
    service, monitor = one(objects, "Service"), one(objects, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert (
        service["spec"]["selector"].items()
        <= one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    )
    (endpoint,), (port,) = monitor["spec"]["endpoints"], service["spec"]["ports"]
    assert endpoint["port"] == port["name"] and service["spec"]["publishNotReadyAddresses"]
    ports = {each["name"]: each["containerPort"] for each in container_of(objects)["ports"]}
    assert ports[port["targetPort"]] == port["port"] == 9100
    for each in (one(objects, "PrometheusRule"), monitor):
        assert each["metadata"]["labels"]["release"] == "prometheus"


def test_the_notes_name_what_the_release_is_called_and_the_port_of_the_console(tmp_path: Path) -> None:
    console = Settings().console.port
    said = chart.notes(tmp_path / "default", "shop", chart.values("image"))
    assert f"port-forward deployment/shop-viewtail {console}\n" in said
    assert "exec deployment/shop-viewtail -- viewtail status" in said
    assert "port-forward" not in chart.notes(tmp_path / "off", "shop", chart.values("everything"))


def test_the_manifest_is_what_the_chart_renders() -> None:
    assert chart.MANIFEST.read_text() == chart.manifest(), "run: make manifest"


def test_the_package_is_of_this_version_with_the_alerts_and_without_the_values_of_tests(tmp_path: Path) -> None:
    done = chart.package(tmp_path)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as opened:
        names = set(opened.getnames())
        rules = opened.extractfile("viewtail/files/prometheus-rules.yml")
        assert rules is not None and rules.read() == (CHECKOUT / "deploy/prometheus-rules.yml").read_bytes()
    assert {"viewtail/README.md", "viewtail/values.schema.json"} <= names and not [
        name for name in names if "/ci/" in name
    ]
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]


def test_the_readme_and_the_schema_know_every_value() -> None:
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
    readme = (chart.CHART / "README.md").read_text()
    assert [name for name in values if f"`{name}" not in readme] == []
