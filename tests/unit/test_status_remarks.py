"""What `viewtail status` says of rebuilds, and what counts as well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsets.copies import Copy, Stage
from offsets.members import Member
from offsets.owners import Owned
from viewtail.operations.findings import Findings, as_owned
from viewtail.operations.fleet import Noted
from viewtail.operations.remarks import remarks
from viewtail.operations.status import PipelineStatus, ViewStatus, as_one

VIEW = "mysql:people"
COPY = Copy(
    view=VIEW, live=1, copy=2, stage=Stage.BUILDING, is_automatic=True, is_compared=False, note=None,
    started_by="run.on_change", keep_s=0, kept_s=None,
)  # fmt: skip


def view(name: str, state: str) -> ViewStatus:
    return ViewStatus(
        name=name, state=state, reason=None, filled_percent=None, row_count=1, row_estimate=1, rows_per_second=0.0,
        eta_s=None, parked=0,
    )  # fmt: skip


def found(lag_s: float, state: str = "filled", rebuild: Copy | None = COPY) -> Findings:
    pipeline = PipelineStatus(
        name="mysql", state="running", position=None, gtid=None, lag_s=lag_s, rows_per_second=1, applied_row_count=1,
        reconnect_count=0, error=None, owner="host:1", reported_s_ago=1.0,
        views=(view(VIEW, "filled"), view(f"{VIEW}~2", state)),
    )  # fmt: skip
    return Findings(pipelines=[pipeline], rebuilds=[] if rebuild is None else [rebuild])


def test_a_copy_that_is_not_swapped_since_the_pipeline_lags_says_so() -> None:
    (told,) = remarks(found(12.3))
    assert "less than 1 s behind, and it is 12.3 s behind now" in told and f"viewtail rebuild {VIEW}" in told
    for other in (
        found(0.4),
        found(12.3, "filling"),
        found(12.3, rebuild=replace(COPY, is_automatic=False)),
        found(12.3, rebuild=replace(COPY, is_compared=True)),
    ):
        assert "behind now" not in remarks(other)[0]


def test_a_copy_that_is_being_dropped_is_not_offered_for_a_way_back() -> None:
    (told,) = remarks(found(0.0, rebuild=replace(COPY, live=2, copy=1, stage=Stage.DROPPING)))
    assert "is being dropped" in told and "--rollback" not in told


@pytest.mark.parametrize(("state", "is_well"), [("new", True), ("filling", True), ("filled", True), ("halted", False)])
def test_a_view_that_is_being_backfilled_is_no_fault(state: str, is_well: bool) -> None:
    assert found(0.0, state, None).is_well is is_well


def test_what_a_process_said_that_is_gone_is_not_taken_for_the_next_one_s() -> None:
    (said,) = found(0.0).pipelines
    member = Member(name="host:1", store="mysql", is_in_group=False, started_at="", is_silent=False)
    owned = Owned(
        pipeline="mysql", fence=1, present_fence=1, process="host:1", taken_at="", taken_s_ago=9.0, gave_up_s_ago=None
    )
    silent = replace(member, is_silent=True)
    taken = replace(owned, process="host:2", fence=2, present_fence=2, taken_s_ago=0.5)
    assert as_owned(said, Noted(members=[member], owned=[owned])) == said
    # It died, and who has the lease now has not noted that yet; or has, and did not report yet.
    for noted in (Noted(members=[silent], owned=[owned]), Noted(members=[member], owned=[taken])):
        shown = as_owned(replace(said, error="it was cut off"), noted)
        assert (shown.state, shown.rows_per_second, shown.error) == ("starting", 0, None)
        assert as_owned(replace(said, state="down"), noted).state == "down"
        assert as_owned(replace(said, state="paused"), noted).state == "paused"
    # The one that reports cannot take it; who had it before said nothing since.
    refused = replace(said, state="halted", error="REPLICATION SLAVE is missing")
    assert as_owned(refused, Noted(members=[member], owned=[replace(taken, taken_s_ago=60.0)])) == refused
    # Nobody has it while its process tries again, and the last one's word is all there is.
    died = replace(said, state="retrying", error="no answer")
    assert as_owned(died, Noted(members=[silent], owned=[owned])) == died


def test_how_much_of_a_halted_view_is_filled_is_not_told() -> None:
    filled = replace(view(VIEW, "filled"), filled_percent=100.0)
    filling = replace(view(VIEW, "filling"), filled_percent=40.0)
    assert as_one([filled, view(VIEW, "halted")]).filled_percent is None
    assert as_one([filled, filling]).filled_percent == 40.0
    assert as_one([filled]).filled_percent == 100.0
