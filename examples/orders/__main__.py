"""From nothing to `orders: 5 views equal their tables`: real servers, real orders, changes, a kill. See README.md."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing

from examples import running
from examples.comparing import Stores
from examples.orders import asking, changing, comparing, joins, tables
from examples.orders.spreading import FanOuts, Spreading
from examples.screen import heading, line
from examples.stage import Stage, fill, judge, load, played, stage, verified
from stack.places import CHECKOUT
from stack.server import Server
from viewtail.demo.process import DemoError, Run, environment

SERVERS = {"mysql": "mysql", "redis": "redis", "elasticsearch": "elasticsearch"}
VIEWS = ("redis:order", "redis:customer", "redis:sold", "mysql:order_by_country", "elasticsearch:orders")
KILL_AT = 0.15  # of the orders that depend on a department


def main() -> int:
    """The exit code: 0 when every view equals its tables."""
    return played("orders", _play)


def _play() -> int:
    weeks = int(os.environ.get("ORDERS_WEEKS", "4"))
    with stage(SERVERS, lambda servers: _prepared(servers, weeks)) as on:
        mysql = running.connected(on.servers["mysql"])
        with closing(Stores(mysql, on.servers["redis"].url, on.servers["elasticsearch"].url)) as stores, closing(mysql):
            heading("viewtail run: new views are filled first")
            fill(on.run, mysql, _counts(stores))
            order = _chosen(stores)
            _change_each_table(stores, order)
            _rename_bananas(on.run, stores)
            run = _rename_a_department(on, stores, order)
            try:
                return _judged(on, stores, order)
            finally:
                run.stop()


def _prepared(servers: Mapping[str, Server], weeks: int) -> Mapping[str, str]:
    heading("Canonical tables: baskets of a grocer's households, in MySQL")
    with closing(running.connected(servers["mysql"])) as connection:
        tables.create(connection)
        load(tables.load(connection, weeks))
    return running.settings([*servers.values()], "examples.orders.views:views")


def _counts(stores: Stores) -> Mapping[str, int]:
    """The rows of each view."""
    orders, customers, products = (
        joins.asked(stores.mysql, f"SELECT COUNT(DISTINCT {of}) FROM shop.{table}")[0][0]
        for of, table in (("id", "`order`"), ("id", "customer"), ("product_id", "order_line"))
    )
    return {**dict.fromkeys(VIEWS, orders), "redis:customer": customers, "redis:sold": products}


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
    heading(f"A change in each table, and how long after COMMIT order {order} has it")
    for change in changing.changes(stores, order):
        line(f"shop.{change.table:<15} {_took(changing.seen(stores, order, change))}   {change.what}")


def _took(seen: changing.Seen) -> str:
    return "   ".join(f"{store} {seconds * 1000:5.0f} ms" for store, seconds in sorted(seen.seconds.items()))


def _rename_bananas(run: Run, stores: Stores) -> None:
    ((product, title),) = joins.asked(
        stores.mysql,
        "SELECT p.id, p.title FROM shop.product p JOIN shop.order_line l ON l.product_id = p.id "
        "GROUP BY p.id ORDER BY COUNT(DISTINCT l.order_id) DESC LIMIT 1",
    )
    new_title = f"Yellow {title}"
    heading(f"A product of very many orders, {title}, is called {new_title}")
    orders = _orders(stores, "l.product_id = %s", product)
    joins.asked(stores.mysql, "UPDATE shop.product SET title = %s WHERE id = %s", new_title, product)
    _spread(run, Spreading(stores, orders, "title", new_title))


def _rename_a_department(on: Stage, stores: Stores, order: int) -> Run:
    """The most orders that a row has; viewtail is killed in their midst. Returns the run that went on."""
    ((department, name),) = joins.asked(
        stores.mysql,
        "SELECT d.id, d.name FROM shop.department d JOIN shop.product p ON p.department_id = d.id "
        "JOIN shop.order_line l ON l.product_id = p.id GROUP BY d.id ORDER BY COUNT(DISTINCT l.order_id) DESC LIMIT 1",
    )
    new_name = f"All {name}"
    heading(f"The department of most orders, {name}, is called {new_name}, and viewtail is killed meanwhile")
    orders = _orders(stores, "p.department_id = %s", department)
    joins.asked(stores.mysql, "UPDATE shop.department SET name = %s WHERE id = %s", new_name, department)
    spreading = Spreading(stores, orders, "department", new_name)

    def is_in_the_midst(fan_outs: FanOuts) -> bool:
        if not fan_outs and spreading.is_everywhere():
            raise DemoError("it was done before viewtail could be killed; more orders take longer: ORDERS_WEEKS=8")
        return any(each.done >= KILL_AT * len(orders) for each in fan_outs)

    spreading.show_until(on.run, is_in_the_midst)
    line(f"meanwhile another change is seen: {_took(changing.seen(stores, order, changing.shipped(order)))}")
    on.run.kill()
    line("viewtail is killed with SIGKILL, and started again")
    run = Run(on.directory, environment(on.settings), cwd=CHECKOUT)
    try:
        _spread(run, spreading)
    except BaseException:
        run.stop()
        raise
    return run


def _spread(run: Run, spreading: Spreading) -> None:
    spreading.show_until(run, lambda fan_outs: not fan_outs and spreading.is_everywhere())
    took_s = time.monotonic() - spreading.began_at
    line(f"{len(spreading.orders):,} orders show it in Redis and Elasticsearch {took_s:.1f} s after COMMIT")


def _orders(stores: Stores, condition: str, value: int) -> list[int]:
    rows = joins.asked(
        stores.mysql,
        "SELECT DISTINCT l.order_id FROM shop.order_line l JOIN shop.product p ON p.id = l.product_id "
        f"WHERE {condition}",
        value,
    )
    return [order for (order,) in rows]


def _judged(on: Stage, stores: Stores, order: int) -> int:
    """How many views are equal to their tables, each by two ways; raises DemoError where one is not."""
    for view in VIEWS:
        on.viewtail("wait", view)
    wrong = _ask(stores, order)
    heading("Every view against plain joins, row by row")
    wrong += judge(comparing.compare(stores))
    if wrong:
        raise DemoError(f"these are not what the tables say: {', '.join(wrong)}")
    return verified(on, count=len(VIEWS))


def _ask(stores: Stores, order: int) -> list[str]:
    heading("The same question to a view, and to the tables with joins")
    wrong = []
    for answer in asking.answers(stores, order):
        line(answer.question)
        verdict = "the same answer" if answer.is_equal else "ANOTHER ANSWER"
        line(f"    view    {answer.view_s * 1000:7.1f} ms   {answer.asked}")
        line(f"    tables  {answer.join_s * 1000:7.1f} ms   {answer.joined}: {verdict}")
        if not answer.is_equal:
            wrong.append(answer.question)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
