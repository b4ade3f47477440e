"""Which tables a server's filters leave out, as the server decides it."""

from __future__ import annotations

import pytest

from ingest.left_out import Filters, LeftOut


@pytest.mark.parametrize(
    ("kind", "rules", "kept", "left"),
    [
        ("binlog", {"do_db": ["shop", "crm"]}, "shop.item crm.lead", "viewtail.watermark Shop.item"),
        ("binlog", {"ignore_db": ["viewtail"]}, "shop.item", "viewtail.watermark"),
        (
            "binlog",
            {"do_db": ["shop"], "ignore_db": ["shop"]},
            "shop.item",
            "other.item",
        ),  # the latter is not looked at
        ("replicate", {"do_table": ["shop.item"]}, "shop.item", "shop.user viewtail.watermark"),
        ("replicate", {"ignore_table": ["shop.item"]}, "shop.user viewtail.watermark", "shop.item"),
        ("replicate", {"wild_do_table": [r"shop\_1.%"]}, "shop_1.item", "shopx1.item viewtail.watermark"),
        ("replicate", {"wild_ignore_table": ["viewtail.%"]}, "shop.item", "viewtail.watermark"),
        ("replicate", {"do_db": ["shop"], "wild_ignore_table": ["%.log_"]}, "shop.item", "shop.logs other.item"),
        ("replicate", {"do_table": ["shop.log1"], "wild_ignore_table": ["%.log_"]}, "shop.log1", "shop.log2 shop.user"),
    ],
)
def test_what_a_server_leaves_out_is_named_by_the_filter_that_does_it(
    kind: str, rules: dict[str, list[str]], kept: str, left: str
) -> None:
    server = LeftOut(filters=[Filters(kind, rules)], is_replica=kind == "replicate")
    assert [server.why_applied(*name.split(".")) for name in kept.split()] == [None] * len(kept.split())
    for name in left.split():
        why = server.why_applied(*name.split("."))
        assert server.why(*name.split(".")) == (why if kind == "binlog" else None), "what is committed on it it logs"
        assert why is not None and why.startswith(f"{kind}-{next(iter(rules)).replace('_', '-')}=")


def test_without_a_filter_nothing_is_left_out_but_by_a_server_that_logs_nothing() -> None:
    assert LeftOut().why("shop", "item") is None
    assert LeftOut(is_logging=False).why("shop", "item") == "it writes no binlog"
    assert LeftOut(is_relogging=False).why_applied("shop", "item") is None, "it is no replica"
    replica = LeftOut(is_replica=True, is_relogging=False)
    assert "log_replica_updates" in (replica.why_applied("shop", "item") or "")
    assert replica.why("shop", "item") is None, "what is committed on it it logs"


def test_only_filters_by_database_leave_statements_out_whatever_their_table() -> None:
    rules = {"ignore_table": ["mysql.plugin"], "wild_ignore_table": ["mysql.%"]}
    managed = Filters("replicate", rules)
    assert LeftOut(filters=[managed]).of_statements == []
    (one,) = LeftOut(filters=[managed, Filters("binlog", {"ignore_db": ["crm"], **rules})]).of_statements
    assert str(one) == "binlog-ignore-db=crm"
