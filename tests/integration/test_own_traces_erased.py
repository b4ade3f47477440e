"""A key is taken out of viewtail's own tables: of texts that fill their columns, and beside who writes there."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from stack import Server
from tests.integration.test_view_states import Scene
from viewtail.changes.tables import Column, Kind
from viewtail.operations.own_traces import ERASED, OwnTrace, OwnTraces

KEY = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)


@pytest.fixture
def scene(mysql_server: Server) -> Scene:
    return Scene(mysql_server)


class _Cursor:
    """Lets another session work behind the first statement's answer."""

    def __init__(self, cursor: Any, between: Callable[[], object]) -> None:
        self._cursor, self._between = cursor, between

    def execute(self, *arguments: Any) -> None:
        self._cursor.execute(*arguments)

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> Any:
        rows = self._cursor.fetchall()
        between, self._between = self._between, lambda: None
        between()
        return rows


def ask(scene: Scene, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
    with closing(scene.open()) as connection, connection.cursor() as cursor:
        cursor.execute(sql.replace("OWN", scene.database), arguments)
        rows = list(cursor.fetchall())
        connection.commit()
    return rows


def erase(scene: Scene, between: Callable[[], object] = lambda: None) -> dict[str, int]:
    return {trace.table: trace.erased for trace in all_traces(scene, between)}


def all_traces(scene: Scene, between: Callable[[], object] = lambda: None) -> list[OwnTrace]:
    with closing(scene.open()) as connection:
        traces = OwnTraces(
            cursor=_Cursor(connection.cursor(), between),
            database=scene.database,
            tables={"shop.user"},
            key=(7,),
            columns=(KEY,),
            views={scene.view.id},
            known={scene.view.id},
        ).erase()
        connection.commit()
    return traces


def record(scene: Scene, what: str, progress: object, result: str) -> None:
    ask(
        scene,
        "INSERT INTO OWN.operator_run (kind, view, what, fingerprint, operator, state, progress, result) "
        "VALUES ('mend', %s, %s, '', 'somebody', 'done', %s, %s)",
        *(scene.view.id, what, json.dumps(progress), result),
    )


def test_a_key_in_a_text_that_fills_its_column_is_erased_all_the_same(scene: Scene) -> None:
    text = f"such as 7, 8; {'x' * 2000}"[:2000]
    record(scene, f"the keys: 7, {'8' * 2000}"[:2000], {}, text)
    scene.put("halted", reason=text)
    ask(
        scene,
        "INSERT INTO OWN.rebuild (view_name, pipeline_id, copy, stage, note, started_by, keep_s) "
        "VALUES (%s, 1, 2, 'ended', %s, 'somebody', 0)",
        *(scene.view.id, text),
    )
    ask(scene, "UPDATE OWN.pipeline SET pause_reason = %s", text[:1000])
    assert set(erase(scene).values()) == {0, 1}
    now = f"such as {ERASED}, 8; {'x' * 2000}"
    assert ask(scene, "SELECT what, result FROM OWN.operator_run") == [
        (f"the keys: {ERASED}, {'8' * 2000}"[:2000], now[:2000])
    ]
    assert ask(scene, "SELECT reason FROM OWN.view") == ask(scene, "SELECT note FROM OWN.rebuild") == [(now[:2000],)]
    assert ask(scene, "SELECT pause_reason FROM OWN.pipeline") == [(now[:1000],)]
    assert set(erase(scene).values()) == {0}


def test_what_is_counted_in_a_record_while_a_key_is_erased_from_it_stays(scene: Scene) -> None:
    named = [{"key": "7", "from": "70", "to": "7"}]
    record(scene, "what changed", {"entities": 1, "lowered": named}, "1 entity written again")
    progress = json.dumps({"entities": 2, "lowered": named})

    def count() -> None:
        ask(scene, "UPDATE OWN.operator_run SET progress = %s, result = '2 entities written again'", progress)

    assert erase(scene, count)["operator_run"] == 1
    ((found, result),) = ask(scene, "SELECT progress, result FROM OWN.operator_run")
    assert json.loads(found) == {"entities": 2, "lowered": [{**named[0], "key": ERASED}]}
    assert result == "2 entities written again"


def test_how_far_a_backfill_came_while_a_key_is_erased_from_its_reason_stays(scene: Scene) -> None:
    scene.put("halted", reason="key 7 cannot be read")

    def replayed() -> None:
        scene.put("filling", fill_key='{"order": "id", "key": [9], "kept": 8}')

    with closing(scene.open()) as connection:
        cursor = connection.cursor()
        traces = OwnTraces(
            cursor=_Cursor(cursor, replayed), database=scene.database, tables={"shop.user"}, key=(7,), columns=(KEY,),
            views={scene.view.id}, known={scene.view.id},
        )  # fmt: skip
        traces._fills()
        connection.commit()
    assert ask(scene, "SELECT state, reason, fill_key FROM OWN.view") == [
        ("filling", None, '{"order": "id", "key": [9], "kept": 8}')
    ]


@pytest.mark.parametrize("what", ['["user#0", [[6], [7]]]', '["#keys", [[7]]]'])
def test_a_fan_out_that_names_the_key_is_named_until_it_is_over(scene: Scene, what: str) -> None:
    scene.put("filled")
    ((number,),) = ask(scene, "SELECT id FROM OWN.view")
    for named in (what, '["user#0", [[70]]]'):
        ask(
            scene,
            "INSERT INTO OWN.fan_out (view_id, what_hash, what, changed_table, changed_key, version, written_upto) "
            "VALUES (%s, LEFT(SHA2(%s, 256), 16), %s, 'shop.user', '', 8, 9)",
            *(number, named, named),
        )
    assert {trace.table: trace.left for trace in all_traces(scene) if trace.left} == {
        "fan_out": f"a fan-out of it in {scene.view.id}"
    }
    ask(scene, "DELETE FROM OWN.fan_out WHERE what = %s", what)
    assert not any(trace.left for trace in all_traces(scene))
    ask(scene, "UPDATE OWN.fan_out SET what = %s, changed_table = 'shop.product'", what)
    assert not any(trace.left for trace in all_traces(scene)), "a row of another table"
