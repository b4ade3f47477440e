"""The files of deploy/: well-formed, and with what a cluster, Grafana and Prometheus need of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.queries import Sample, missing, samples

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OPERATIONS = DEPLOY.with_name("docs") / "operations.md"


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return parsed


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text())}


@pytest.fixture(scope="module")
def container(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (found,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_the_dashboard_asks_for_its_prometheus_when_it_is_imported(dashboard: dict[str, Any]) -> None:
    assert [(one["name"], one["type"], one["pluginId"]) for one in dashboard["__inputs"]] == [
        ("DS_PROMETHEUS", "datasource", "prometheus")
    ]
    assert dashboard["id"] is None  # or Grafana takes it for one that it has
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    panels = [one for one in dashboard["panels"] if one["type"] != "row"]
    assert len(panels) > 10
    for one in (
        *panels,
        *(target for panel in panels for target in panel["targets"]),
        *dashboard["templating"]["list"],
    ):
        assert one["datasource"] == source
    assert {panel["type"] for panel in panels} == {
        one["id"] for one in dashboard["__requires"] if one["type"] == "panel"
    }


def test_the_panels_of_the_dashboard_have_numbers_titles_and_places_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_its_variables_are_those_that_its_queries_use(dashboard: dict[str, Any]) -> None:
    text = json.dumps([panel.get("targets", []) for panel in dashboard["panels"]])
    used = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval"}
    assert used == {one["name"] for one in dashboard["templating"]["list"]}


def test_each_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"]
    anchors = re.findall(r"^#+ (.+)$", OPERATIONS.read_text(), re.MULTILINE)
    assert len(group["rules"]) >= 5
    for rule in group["rules"]:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        named = re.findall(r"docs/operations\.md, (.+)$", rule["annotations"]["description"])
        assert set(named) <= set(anchors), rule["alert"]


def test_a_metric_or_label_that_nobody_serves_is_found() -> None:
    page = 'viewtail_lag_seconds{pipeline="mysql"} 0.0\nviewtail_view_state{view="v",state="halted"} 1.0\n'
    served = samples(page)
    assert served[0] == Sample("viewtail_lag_seconds", {"pipeline": "mysql"})
    assert missing('max by (job, pipeline) (viewtail_lag_seconds{job=~"$job"})', "{{pipeline}}", served) == []
    assert missing("viewtail_lag_second", "", served) == ["viewtail_lag_second"]
    assert missing("viewtail_lag_seconds", "{{ $labels.view }}", served) == ["viewtail_lag_seconds{view}"]
    assert missing("max by (state) (viewtail_lag_seconds)", "", served) == ["viewtail_lag_seconds{state}"]
    assert missing('viewtail_view_state{state="gone"}', "", served) == ["viewtail_view_state{state=gone}"]
    assert missing("up == 0", "", served) != []


def test_the_manifest_has_all_that_it_refers_to(objects: dict[str, dict[str, Any]], container: dict[str, Any]) -> None:
    assert set(objects) == {"ServiceAccount", "ConfigMap", "Deployment", "PodDisruptionBudget"}
    pod = objects["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert objects[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == set(volumes)
    assert volumes["views"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    (source,) = volumes["secrets"]["projected"]["sources"]
    (item,) = source["secret"]["items"]
    head = (DEPLOY / "kubernetes.yml").read_text().partition("---")[0]
    assert f"kubectl create secret generic {source['secret']['name']} --from-literal={item['key']}=" in head
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    env = {one["name"]: one["value"] for one in container["env"]}
    assert (
        str(ports["metrics"]) == env["VIEWTAIL_METRICS__PORT"] == pod["metadata"]["annotations"]["prometheus.io/port"]
    )
    assert (container["livenessProbe"]["httpGet"]["path"], container["readinessProbe"]["httpGet"]["path"]) == (
        "/livez",
        "/readyz",
    )
    assert container["livenessProbe"]["httpGet"]["port"] == container["readinessProbe"]["httpGet"]["port"] == "metrics"


def test_the_manifest_gives_the_process_no_more_than_it_needs(
    objects: dict[str, dict[str, Any]], container: dict[str, Any]
) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert f"--uid {pod['securityContext']['runAsUser']} " in (DEPLOY.parent / "Dockerfile").read_text()
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert {"requests", "limits"} <= set(container["resources"])
    assert pod["terminationGracePeriodSeconds"] > 10
    assert pod["enableServiceLinks"] is False  # VIEWTAIL_PORT and the like would be settings that do not exist


def test_an_update_and_a_drain_leave_one_process_at_work(objects: dict[str, dict[str, Any]]) -> None:
    spec = objects["Deployment"]["spec"]
    assert spec["replicas"] == 2
    assert (
        spec["strategy"]["rollingUpdate"]["maxUnavailable"] == objects["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    )
    assert objects["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
