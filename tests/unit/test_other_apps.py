"""Another app on the same database is told apart from a changed views.py that is being rolled out."""

from __future__ import annotations

from dataclasses import replace

from viewtail.operations.other_apps import other_app
from viewtail.operations.status import PipelineStatus, ViewStatus


def running(*views: str, state: str = "running") -> PipelineStatus:
    return PipelineStatus(
        name="redis",
        state=state,
        position=None,
        gtid=None,
        lag_s=0.0,
        rows_per_second=0,
        applied_row_count=0,
        reconnect_count=0,
        error=None,
        owner="host-a:17",
        reported_s_ago=1.0,
        views=tuple(
            ViewStatus(
                name=view,
                state="filled",
                reason=None,
                filled_percent=100.0,
                row_count=1,
                row_estimate=1,
                rows_per_second=0.0,
                eta_s=None,
                parked=0,
            )
            for view in views
        ),
    )


def test_a_viewtail_with_other_views_is_another_app() -> None:
    found = other_app([running("redis:a", "redis:b~2", "mysql:c")], "viewtail", {"redis:x", "redis:y"})
    assert found is not None
    assert found.views == ("mysql:c", "redis:a", "redis:b")
    assert "host-a:17" in str(found) and "the database viewtail" in str(found)


def test_one_that_shares_a_view_by_its_name_is_another_app_all_the_same() -> None:
    assert other_app([running("redis:user", "redis:a", "redis:b")], "viewtail", {"redis:user", "redis:x", "redis:y"})


def test_a_changed_views_py_that_is_rolled_out_is_none() -> None:
    kept = running("redis:a", "redis:b", "redis:c")
    for declared in (
        {"redis:a", "redis:b", "redis:c"},
        {"redis:a", "redis:b", "redis:new", "mysql:new"},
        {"redis:a"},
        {"redis:a", "redis:b", "redis:c", *(f"redis:new{number}" for number in range(20))},
    ):
        assert other_app([kept], "viewtail", declared) is None


def test_what_nobody_keeps_now_is_no_other_app() -> None:
    assert other_app([running("redis:a", state="down")], "viewtail", {"redis:x"}) is None
    one = running("redis:a")
    halted = replace(one, views=tuple(replace(view, state="halted") for view in one.views))
    assert other_app([halted], "viewtail", {"redis:x"}) is None
    assert other_app([one], "viewtail", set()) is None
