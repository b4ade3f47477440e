"""From nothing to `orders: 5 views equal their tables`: real servers, real orders, changes, a kill. See README.md."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pymysql

from examples.demo import running, screen
from examples.demo.comparing import Stores
from examples.demo.running import DemoError, Run
from examples.demo.screen import heading, line
from examples.orders import asking, changing, comparing, joins, tables
from examples.stage import Stage, played, stage, verified
from stack.server import Server
from viewtail.servers.sessions import PlaceholderCursor

SERVERS = {"mysql": "mysql", "redis": "redis", "elasticsearch": "elasticsearch"}
VIEWS = ("redis:order", "redis:customer", "redis:sold", "mysql:order_by_country", "elasticsearch:orders")
FILLED_WITHIN_S = 300.0
WORKED_OFF_WITHIN_S = 300.0
LOOK_EVERY_S = 0.1
KILL_AT = 0.2  # of the orders that depend on a department


def main() -> int:
    """The exit code: 0 when every view equals its tables."""
    return played("orders", _play)


def _play() -> int:
    weeks = int(os.environ.get("ORDERS_WEEKS", "4"))
    with stage(SERVERS, lambda servers: _prepared(servers, weeks)) as on:
        mysql = _connected(on.servers["mysql"])
        _fill(on, mysql)
        with closing(Stores(mysql, on.servers["redis"].url, on.servers["elasticsearch"].url)) as stores, closing(mysql):
            order = _chosen(stores)
            _change_each_table(stores, order)
            _rename_bananas(stores)
            run = _rename_a_department(on, stores, order)
            try:
                return _judged(on, stores, order)
            finally:
                run.stop()


def _prepared(servers: Mapping[str, Server], weeks: int) -> Mapping[str, str]:
    heading("Canonical tables: baskets of a grocer's households, in MySQL")
    with closing(_connected(servers["mysql"])) as connection:
        tables.create(connection)
        began_at = time.monotonic()
        counts: dict[str, int] = {}
        with screen.area() as area:
            for table, done, of in tables.load(connection, weeks):
                counts[table] = of
                text = [f"{table}: {done:,} of {of:,} rows"]
                area.show(screen.bar(table, done, of), text, is_last=done == of)
    line(f"{sum(counts.values()):,} rows in {time.monotonic() - began_at:.1f} s")
    return {
        "VIEWTAIL_SOURCE__URL": servers["mysql"].url,
        "VIEWTAIL_REDIS__URL": servers["redis"].url,
        "VIEWTAIL_ELASTICSEARCH__URL": servers["elasticsearch"].url,
        "VIEWTAIL_VIEWS": "examples.orders.views:views",
    }


def _fill(on: Stage, connection: pymysql.Connection[Any]) -> None:
    heading("viewtail run: new views are filled first")
    orders, customers, products = (
        joins.asked(connection, f"SELECT COUNT(DISTINCT {of}) FROM shop.{table}")[0][0]
        for of, table in (("id", "`order`"), ("id", "customer"), ("product_id", "order_line"))
    )
    counts = {**dict.fromkeys(VIEWS, orders), "redis:customer": customers, "redis:sold": products}
    began_at = time.monotonic()
    with screen.area() as area:
        for status in running.fills(on.run, connection, len(VIEWS), FILLED_WITHIN_S):
            is_last = sum(view.state == "filled" for pipeline in status for view in pipeline.views) == len(VIEWS)
            area.show(screen.fill_table(status, counts), screen.fill_lines(status), is_last=is_last)
    line(f"{len(VIEWS)} views filled in {time.monotonic() - began_at:.1f} s")


def _chosen(stores: Stores) -> int:
    """An order with a coupon and several lines, from a country with few orders."""
    ((order,),) = joins.asked(
        stores.mysql,
        "SELECT MIN(x.order_id) FROM shop.order_campaign x JOIN shop.order o ON o.id = x.order_id "
        "JOIN shop.customer c ON c.id = o.customer_id WHERE (SELECT COUNT(*) FROM shop.order_line l "
        "WHERE l.order_id = o.id) > 3 AND (SELECT COUNT(*) FROM shop.order_campaign y WHERE y.order_id = o.id) = 1 "
        "GROUP BY c.country_iso ORDER BY COUNT(*), 1 LIMIT 1",
    )
    return int(order)


def _change_each_table(stores: Stores, order: int) -> None:
    heading(f"A change in each table, until the documents of order {order} show it")
    for change in changing.changes(stores, order):
        seen = changing.seen(stores, order, change)
        took = "   ".join(f"{store} {seconds * 1000:6.1f} ms" for store, seconds in seen.seconds.items())
        line(f"shop.{change.table:<15} {took}")


def _rename_bananas(stores: Stores) -> None:
    heading("A product of very many orders gets another name")
    ((product, title),) = joins.asked(
        stores.mysql,
        "SELECT p.id, p.title FROM shop.product p JOIN shop.order_line l ON l.product_id = p.id "
        "GROUP BY p.id ORDER BY COUNT(DISTINCT l.order_id) DESC LIMIT 1",
    )
    orders = _orders(stores, "l.product_id = %s", product)
    began_at = _committed(stores, f"UPDATE shop.product SET title = 'Yellow {title}' WHERE id = {product}")
    _worked_off(orders, lambda: _count(stores, orders, f"Yellow {title}"))
    line(f"{title} in {len(orders):,} orders: every document shows it after {time.monotonic() - began_at:.1f} s")


def _rename_a_department(on: Stage, stores: Stores, order: int) -> Run:
    """The most orders that a row has; viewtail is killed in their midst. Returns the run that went on."""
    heading("A department of most orders gets another name, and viewtail is killed meanwhile")
    ((department, name),) = joins.asked(
        stores.mysql,
        "SELECT d.id, d.name FROM shop.department d JOIN shop.product p ON p.department_id = d.id "
        "JOIN shop.order_line l ON l.product_id = p.id GROUP BY d.id ORDER BY COUNT(DISTINCT l.order_id) DESC LIMIT 1",
    )
    orders = _orders(stores, "p.department_id = %s", department)
    began_at = _committed(stores, f"UPDATE shop.department SET name = 'All {name}' WHERE id = {department}")

    def shown() -> int:
        return _count(stores, orders, f"All {name}")

    while (done := shown()) < KILL_AT * len(orders):
        on.run.require_running()
        _in_time(began_at)
        time.sleep(0.02)
    _tell_fan_outs(on)
    live = changing.seen(
        stores,
        order,
        changing.Change(
            "order",
            (f"UPDATE shop.order SET status = 'shipped' WHERE id = {order}",),
            lambda document: document["status"] == "shipped",
        ),
    )
    took = ", ".join(f"{store} {seconds * 1000:.0f} ms" for store, seconds in live.seconds.items())
    line(f"meanwhile another change is seen after: {took}")
    on.run.kill()
    line(f"SIGKILL when {done:,} of {len(orders):,} orders showed it; viewtail starts again")
    run = Run(on.directory, on.settings, stays=False)
    try:
        _worked_off(orders, shown, tell=lambda: _tell_fan_outs(on))
    except BaseException:
        run.stop()
        raise
    line(f"{name} in {len(orders):,} orders: every document shows it after {time.monotonic() - began_at:.1f} s")
    return run


def _worked_off(orders: list[int], shown: Callable[[], int], tell: Callable[[], None] = lambda: None) -> None:
    began_at = time.monotonic()
    with screen.area() as area:
        while (done := shown()) < len(orders):
            _in_time(began_at)
            area.show(screen.bar("orders", done, len(orders)), [f"{done:,} of {len(orders):,} orders show it"])
            tell()
            time.sleep(LOOK_EVERY_S)
        area.show(screen.bar("orders", done, done), [f"{done:,} of {done:,} orders show it"], is_last=True)


def _in_time(began_at: float) -> None:
    if time.monotonic() - began_at > WORKED_OFF_WITHIN_S:
        raise DemoError(f"not every document shows a change after {WORKED_OFF_WITHIN_S:.0f} s")


def _tell_fan_outs(on: Stage) -> None:
    """What `viewtail status` says is under way."""
    for pipeline in json.loads(on.viewtail("status", "--json").stdout)["pipelines"]:
        for job in pipeline.get("fan_outs", ()):
            about = "" if job["about"] is None else f" of about {job['about']:,}"
            line(f"status: {job['view']} works off {job['table']} {job['key']}: {job['done']:,}{about}")


def _orders(stores: Stores, condition: str, value: int) -> list[int]:
    rows = joins.asked(
        stores.mysql,
        "SELECT DISTINCT l.order_id FROM shop.order_line l JOIN shop.product p ON p.id = l.product_id "
        f"WHERE {condition}",
        value,
    )
    return [order for (order,) in rows]


def _count(stores: Stores, orders: list[int], text: str) -> int:
    """How many of these documents have the text in them."""
    wanted, count = text.encode(), 0
    for at in range(0, len(orders), comparing.ROWS_A_LOOK):
        texts: Any = stores.redis.mget([f"order:{order}" for order in orders[at : at + comparing.ROWS_A_LOOK]])
        count += sum(document is not None and wanted in document for document in texts)
    return count


def _committed(stores: Stores, statement: str) -> float:
    """When the statement was committed."""
    joins.asked(stores.mysql, statement)
    return time.monotonic()


def _judged(on: Stage, stores: Stores, order: int) -> int:
    """How many views are equal to their tables, each by two ways; raises DemoError where one is not."""
    for view in VIEWS:
        on.viewtail("wait", view)
    wrong = _ask(stores, order)
    heading("Every view against the joins, row by row")
    for view, count, differing in comparing.compare(stores):
        line(f"{view:<26} {count:>9,} rows   {'equal' if not differing else 'DIFFERENT'}")
        for difference in differing:
            line(f"    {difference}")
        if differing:
            wrong.append(view)
    if wrong:
        raise DemoError(f"these are not what the tables say: {', '.join(wrong)}")
    return verified(on, count=len(VIEWS))


def _ask(stores: Stores, order: int) -> list[str]:
    heading("The same questions to a view and to the tables")
    wrong = []
    for answer in asking.answers(stores, order):
        line(answer.question)
        line(f"    {answer.asked:<40} {answer.view_s * 1000:8.1f} ms")
        line(f"    {'the joins as SQL':<40} {answer.join_s * 1000:8.1f} ms")
        line("    both answers are equal" if answer.is_equal else "    WRONG: the answers differ")
        if not answer.is_equal:
            wrong.append(answer.question)
    return wrong


def _connected(server: Server) -> pymysql.Connection[Any]:
    return pymysql.connect(
        host=server.host,
        port=server.port,
        user="root",
        charset="utf8mb4",
        init_command="SET time_zone = '+00:00', transaction_isolation = 'READ-COMMITTED'",
        cursorclass=PlaceholderCursor,
    )


if __name__ == "__main__":
    sys.exit(main())
