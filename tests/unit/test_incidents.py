"""The list of what is not well, and when people are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import Margin
from offsets.incidents import IncidentKey, IncidentRecord
from offsets.pauses import Pause
from offsets.views import State
from viewtail.changes.pipelines import PipelineState
from viewtail.console.looking import Seen
from viewtail.notifying.checks import checks
from viewtail.notifying.messages import MOST_SHOWN, Message, Notice, body_of, form_of, page_of
from viewtail.notifying.notifier import due
from viewtail.operations.findings import Findings
from viewtail.operations.health import BEHIND_S
from viewtail.operations.incidents import Incident, Kind, incidents
from viewtail.operations.remarks import remarks, told
from viewtail.operations.status import PipelineStatus, ViewStatus
from viewtail.settings import NotifySettings

SECRET = "ada@example.org"  # as a reason may name it
VIEW = ViewStatus(
    name="redis:user", state=State.FILLED, reason=None, filled_percent=100.0, row_count=1, row_estimate=1,
    rows_per_second=0.0, eta_s=None, parked=0,
)  # fmt: skip
PIPELINE = PipelineStatus(
    name="redis", state="running", position=None, gtid=None, lag_s=0.0, rows_per_second=0, applied_row_count=1,
    reconnect_count=0, error=None, owner="host:1", reported_s_ago=1.0, views=(VIEW,),
)  # fmt: skip
LOW = Margin(left_s=3600.0, keeps_s=86_400.0, limit="binlog_expire_logs_seconds")


def kinds(*pipelines: PipelineStatus, **more: Any) -> list[str]:
    return [incident.kind for incident in incidents(Findings(pipelines=pipelines, **more))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"state": "down", "lag_s": 900.0}, ["down"]),
        ({"state": "halted", "error": "history gone: ..."}, ["halted"]),
        ({"state": "halted", "lag_s": 61.0}, ["halted", "behind"]),
        ({"state": "retrying"}, ["not_running"]),
        ({"lag_s": BEHIND_S}, []),
        ({"lag_s": 61.0}, ["behind"]),
        (
            {"state": "paused", "paused": Pause(since="now", by="me", reason=None, lag_s=61.0), "lag_s": 61.0},
            ["behind"],
        ),
        ({"views": (replace(VIEW, state=State.HALTED, reason="no column"),)}, ["view_halted"]),
        ({"views": (replace(VIEW, parked=2),)}, ["parked"]),
        ({"views": (replace(VIEW, state=State.PAUSED),)}, []),
        ({"views": (replace(VIEW, state=State.NEW),)}, []),
        ({"views": (replace(VIEW, state=State.NEW),), "error": "no rights"}, ["not_filled"]),
    ],
)
def test_each_kind_of_incident_is_listed(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds(replace(PIPELINE, **changes)) == expected


@pytest.mark.parametrize(
    ("state", "has_others"), [("filled", True), ("filling", True), ("halted", False), ("new", False), ("paused", False)]
)
def test_of_a_view_that_is_not_filled_nobody_says_that_all_other_keys_were_applied(
    state: str, has_others: bool
) -> None:
    view = replace(VIEW, state=State(state), row_count=0, parked=593, reason="no" if state == "halted" else None)
    found = incidents(Findings(pipelines=[replace(PIPELINE, views=(view,))]))
    words = next(each.words for each in found if each.kind == "parked")
    assert "593 keys could not be applied" in words and ("all others were" in words) is has_others
    assert ("all others were" in " ".join(told([replace(PIPELINE, views=(view,))]))) is has_others


def test_a_low_margin_is_a_warning_and_no_fault() -> None:
    findings = Findings(pipelines=[PIPELINE], margins={"redis": LOW})
    (incident,) = incidents(findings)
    assert incident.kind == "margin" and not incident.is_fault and findings.is_well
    assert "in 60.0 minutes; it keeps changes for 24.0 hours (binlog_expire_logs_seconds)" in incident.words
    assert f"{incident.words}. {incident.mend}" in remarks(findings)
    assert f"{incident.words}. {incident.mend}" in Seen(findings=findings).lines
    far = replace(findings, margins={"redis": replace(LOW, left_s=50_000.0)})
    assert incidents(far) == []
    assert "13.9 hours at least" in " ".join(remarks(far)), "status says it all the same"
    assert Seen(findings=far).lines == [], "nothing is to do about it"


def test_partitions_of_one_source_have_one_incident_of_a_view_and_two_sources_have_two() -> None:
    halted = replace(VIEW, state=State.HALTED)
    names = ("shop.user.0.redis", "shop.user.1.redis", "eu.0.redis")
    found = incidents(Findings(pipelines=[replace(PIPELINE, name=name, views=(halted,)) for name in names]))
    assert [(one.kind, one.pipeline) for one in found] == [
        ("view_halted", "shop.user.0.redis"), ("view_halted", "eu.0.redis")
    ]  # fmt: skip


pipelines = st.builds(
    replace,
    st.just(PIPELINE),
    state=st.sampled_from(["down", *(state.value for state in PipelineState)]),
    lag_s=st.sampled_from([0.0, 60.0, 60.1, 1e6]),
    error=st.sampled_from([None, "no answer"]),
    views=st.lists(
        st.builds(replace, st.just(VIEW), state=st.sampled_from(State), parked=st.integers(0, 2)), max_size=2
    ).map(tuple),
)


@given(found=st.lists(pipelines, min_size=1, max_size=3), not_run=st.sampled_from([(), ("redis:new",)]))
def test_status_is_well_where_the_list_has_no_fault_and_only_there(
    found: list[PipelineStatus], not_run: tuple[str, ...]
) -> None:
    findings = Findings(pipelines=found, not_run=not_run)
    assert findings.is_well is not any(incident.is_fault for incident in incidents(findings))


def test_a_reason_stays_where_operators_look() -> None:
    bad = replace(PIPELINE, state="halted", error=f"no {SECRET}", views=(replace(VIEW, state=State.HALTED),))
    bad = replace(bad, views=(replace(bad.views[0], reason=f"no {SECRET}"),))
    found = incidents(Findings(pipelines=[bad]))
    assert len(found) == 2 and all(SECRET in f"{one.reason}" for one in found)
    assert not any(SECRET in one.words + one.mend for one in found)
    assert sum(SECRET in line for line in told([bad])) == 2, "status says it"


# -- when --------------------------------------------------------------------------------------------------------------

KEY = IncidentKey("down", "redis", "")
SEEN = {KEY: Incident(kind=Kind.DOWN, pipeline="redis", view=None, words="it is down", mend="viewtail run")}
RECORD = IncidentRecord(id=1, key=KEY, lasted_s=60.0, over_s=None, is_told=False)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "began"),
        ({"lasted_s": 59.0}, ""),
        ({"is_told": True}, ""),
        ({"over_s": 59.0, "is_told": True}, ""),
        ({"over_s": 60.0, "is_told": True}, "over"),
        ({"over_s": 60.0, "lasted_s": 59.0}, "forgotten"),
        ({"over_s": 60.0}, "was"),
        ({"over_s": 59.0}, ""),
    ],
)
def test_an_incident_is_told_when_it_lasts_and_when_it_is_over_for_a_while(changes: dict[str, Any], what: str) -> None:
    found = due([replace(RECORD, **changes)], SEEN, {"down": 60.0}, 60.0)
    assert [name for name in ("began", "over", "was", "forgotten") if getattr(found, name)] == ([what] if what else [])


# -- forms -------------------------------------------------------------------------------------------------------------

NOTICE = Notice(
    kind="down", pipeline="redis", view=None, words="pipeline redis is <down> & out", mend="viewtail run",
    page="https://console/pipeline/redis", lasted_s=61.0,
)  # fmt: skip


def message(count: int = 1) -> Message:
    return Message(deployment="viewtail on db1:3306", began=[NOTICE] * count)


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    return ["".join(run["text"] for run in block["inlines"]) for block in found]


def test_slack_gets_one_text_with_its_three_characters_as_entities() -> None:
    assert orjson.loads(body_of(message(), "slack")) == {
        "text": "*viewtail, viewtail on db1:3306: 1 not well*\n"
        "• pipeline redis is &lt;down&gt; &amp; out. viewtail run <https://console/pipeline/redis|Open>"
    }


def test_teams_gets_an_adaptive_card_in_a_message() -> None:
    body = orjson.loads(body_of(message(), "teams"))
    (attachment,) = body.pop("attachments")
    assert body == {"type": "message"}
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["$schema"]) == ("AdaptiveCard", "http://adaptivecards.io/schemas/adaptive-card.json")
    assert lines(card["body"]) == [
        "viewtail, viewtail on db1:3306: 1 not well", "pipeline redis is <down> & out. viewtail run Open"
    ]  # fmt: skip
    action = card["body"][1]["inlines"][1]["selectAction"]
    assert action == {"type": "Action.OpenUrl", "url": "https://console/pipeline/redis"}


def test_a_program_gets_what_began_and_what_is_over() -> None:
    body = orjson.loads(body_of(replace(message(), over=[NOTICE]), "json"))
    assert body["text"] == "viewtail, viewtail on db1:3306: 1 not well, 1 over"
    assert body["began"] == body["over"] and body["began"][0]["kind"] == "down"


def test_people_are_shown_some_and_the_count_of_the_rest() -> None:
    text = orjson.loads(body_of(message(MOST_SHOWN + 3), "slack"))["text"].splitlines()
    assert len(text) == MOST_SHOWN + 2 and text[-1] == "• and 3 more: viewtail status"


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/1", "teams"),
        ("https://default1.environment.api.powerplatform.com/powerautomate/1", "teams"),
        ("https://acme.webhook.office.com/webhookb2/1", "teams"),
        ("https://evil-hooks.slack.com.example.org/x", "json"),
        ("https://logic.azure.com.example.org/x", "json"),
    ],
)
def test_the_host_says_which_form_its_readers_take(url: str, form: str) -> None:
    assert form_of(url, "auto") == form
    assert form_of(url, "slack") == "slack"


def test_the_page_is_the_console_s_where_people_can_reach_it() -> None:
    assert page_of(None, "redis", None, None) is None
    assert page_of("https://c", "shop.user.0.redis", None, None) == "https://c/pipeline/shop.user.0.redis"
    assert page_of("https://c", "redis", "redis:a/b c", "s1") == "https://c/view/redis/a%252Fb%2520c?of=s1"


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "ok"),
        ("https://hooks.slack.com/x", "fail"),
        ("http://10.0.0.1/x", "warn"),
        ("http://127.0.0.1:9000/x", "ok"),
    ],
)
def test_check_judges_the_form_of_the_webhook_s_address(url: str, level: str) -> None:
    (found,) = checks(NotifySettings(url=url))
    assert found.level.value == level and url not in f"{found}"
    assert not [*checks(NotifySettings())]


@pytest.mark.parametrize(
    "url",
    [
        *("hooks.slack.com/services", "ftp://h/x", "https:///x", "https://[x", "https://a\nb"),
        *("https://me:pw@h/x", "https://h:port/x", "https://h:70000/x"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="url") as caught:
        NotifySettings(url=url)
    assert url not in str(caught.value)
