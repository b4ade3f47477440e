"""What a pipeline is called: as its store where users know it so, and never as another one."""

from __future__ import annotations

import pytest

from viewtail.changes.pipelines import PipelineId


@pytest.mark.parametrize("store", ["mysql", "redis", "elasticsearch"])
def test_pipelines_of_the_default_source_are_called_as_their_store(store: str) -> None:
    assert PipelineId.of(store).name == store
    assert PipelineId.parse(store) == PipelineId.of(store)


def test_each_other_pipeline_has_a_name_of_its_own_that_leads_back_to_it() -> None:
    all_of_them = [
        PipelineId(source, partition, store)
        for source in ("default", "orders", "orders-1", "redis", "shop.user", "shop.user.1", "a.1.redis")
        for partition in (0, 1, 12)
        for store in ("mysql", "redis")
    ]
    assert len({one.name for one in all_of_them}) == len(all_of_them)
    assert [PipelineId.parse(one.name) for one in all_of_them] == all_of_them
    assert PipelineId("orders", 1, "redis").name == "orders.1.redis"


@pytest.mark.parametrize(
    "name", ["", "a.b", "a.b.redis", "a.1.", "a:b.1.redis", "a.-1.redis", "a.1.b.c", f"{250 * 'a'}.1.redis"]
)
def test_what_would_be_another_pipelines_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        PipelineId.parse(name)
