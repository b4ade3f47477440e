"""Archived events: each is in one place, comes back as it was, and its command never takes effect again."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.support.archived import OldBank, deposit, sent
from tests.support.asking import ask
from tests.support.running import wait_for
from tests.support.small_disk import SmallDisk
from viewtail.changes.errors import StoreError
from viewtail.entities import Answer, Command, Refusal, UsedCommandIdError, remembered
from viewtail.entities.archiving import Archiving
from viewtail.entities.batches import Batches
from viewtail.entities.event_table import EventTable
from viewtail.entities.restoring import Restoring

pytestmark = pytest.mark.mysql

WAYS = ("table", "files")


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> OldBank:
    return OldBank(request.getfixturevalue(request.param), tmp_path)


@pytest.fixture
def mysql_bank(mysql_server: Server, tmp_path: Path) -> OldBank:
    return OldBank(mysql_server, tmp_path)


def into(way: str, folder: Path) -> list[str]:
    if way == "table":
        return []
    (folder / "files").mkdir(exist_ok=True)
    return ["--into-files", str(folder / "files")]


def files(folder: Path) -> list[Path]:
    return sorted((folder / "files").iterdir())


# --- Out and back ---


@pytest.mark.parametrize("way", WAYS)
def test_old_events_move_and_come_back_as_they_were(bank: OldBank, tmp_path: Path, way: str) -> None:
    ask(
        bank.server,
        "UPDATE bank.account SET committed_at = CURRENT_TIMESTAMP(6) WHERE version > 290 OR "
        "(entity_id = 'e1' AND version = 100)",
    )
    before = bank.live()
    told = bank.run.command("archive", "bank.account", "--older-than", "90d", *into(way, tmp_path), "--dry-run")
    assert (told.returncode, bank.live()) == (0, before), told.stderr
    assert "about 1,159 events" in told.stdout
    done = bank.archive(*into(way, tmp_path))
    assert done.returncode == 0, done.stderr
    assert "969 events were moved" in done.stdout and "190 stay" in done.stdout
    bank.check_nothing_is_lost_or_twice()
    kept = [row for row in before if row[2] > 290 or (row[1] == "e1" and row[2] >= 100)]
    assert bank.live() == kept
    again = bank.archive(*into(way, tmp_path))
    assert again.returncode == 0 and "0 events were moved" in again.stdout
    one = bank.restore("--entity", "e2")
    assert one.returncode == 0 and "290 events were brought back" in one.stdout, one.stderr
    assert [row for row in bank.live() if row[1] == "e2"] == [row for row in before if row[1] == "e2"]
    bank.check_nothing_is_lost_or_twice()
    done = bank.restore("--all")
    assert done.returncode == 0, done.stderr
    assert bank.live() == before and bank.archived() == []
    shown = bank.run.command("replays").stdout
    assert "archive" in shown and "restore" in shown and "e2" not in shown


@pytest.mark.parametrize("way", WAYS)
def test_archived_commands_keep_their_answers(bank: OldBank, tmp_path: Path, way: str) -> None:
    assert bank.archive(*into(way, tmp_path)).returncode == 0
    assert len(bank.live()) == 4
    with bank.accounts.worker() as worker:
        asked = [worker.submit(one) for one in (sent("e1", 3), sent("e2", 300), sent("e3", 301), sent("e4", 5, 6))]
        assert asked[0].result(60) == Answer(response={"balance": 6}, version=3, is_repeated=True)
        assert asked[1].result(60) == Answer(response={"balance": 45150}, version=300, is_repeated=True)
        assert asked[2].result(60) == Answer(response={"balance": 45451}, version=301, is_repeated=False)
        with pytest.raises(UsedCommandIdError):
            asked[3].result(60)
        new = worker.submit(Command(entity_id="new", command_id="c1", name="deposit", request={"amount": 1}))
        assert new.result(60).version == 1
    assert bank.accounts.state("e1", version=7) == ({"balance": 28}, 7)
    assert bank.accounts.state("e1") == ({"balance": 45150}, 300)
    assert bank.accounts.state("e1", version=301) is None and bank.accounts.state("nobody", version=1) is None


def test_a_command_that_is_archived_under_a_busy_worker_takes_effect_no_second_time(
    bank: OldBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "FOR_S", 60.0)
    with bank.accounts.worker() as worker:
        for entity in ("e1", "e2"):
            assert worker.submit(sent(entity, 301)).result(20).version == 301
        assert bank.archive().returncode == 0
        assert worker.submit(sent("e1", 3)).result(20) == Answer(response={"balance": 6}, version=3, is_repeated=True)
        assert worker.submit(sent("e2", 302)).result(20).version == 302
        assert worker.submit(sent("e2", 5)).result(20).is_repeated
    assert len(bank.live()) + len(bank.archived()) == 1_203


def test_an_archive_table_of_another_schema_is_found_and_stays_the_one(bank: OldBank) -> None:
    done = bank.archive("--into", "old.events")
    assert done.returncode == 0, done.stderr
    assert len(bank.archived(table="old.events")) == 1196 and bank.archived() == []
    with bank.accounts.worker() as worker:
        assert worker.submit(sent("e1", 3)).result(60).is_repeated
    other = bank.archive("--into", "old.others")
    assert other.returncode == 2 and "leave --into out" in other.stderr
    assert "0 events were moved" in bank.archive().stdout


def test_new_commands_ask_the_archive_only_where_it_may_have_them(mysql_bank: OldBank) -> None:
    bank = mysql_bank
    assert bank.archive().returncode == 0

    def asked() -> int:
        ((count,),) = ask(
            bank.server,
            "SELECT COALESCE(SUM(COUNT_READ), 0) FROM performance_schema.table_io_waits_summary_by_table "
            "WHERE object_schema = 'bank' AND object_name LIKE 'account_archive%'",
        )
        return int(count)

    with bank.accounts.worker() as worker:
        for number in range(2):
            worker.submit(sent("young", number)).result(60)
        before = asked()
        for number in range(2, 30):
            worker.submit(sent("young", number)).result(60)
            worker.submit(sent("e1", 300)).result(60)
        assert asked() == before
        worker.submit(sent("e1", 3)).result(60)
        assert asked() > before


# --- A command under way while events move ---


class Between:
    """Runs something once, between what a batch reads and what it writes, or at a given statement of it."""

    def __init__(self, work: Any) -> None:
        self._work: Any = work

    def __call__(self, at: int | None = None) -> None:
        if at is None and self._work is not None:
            work, self._work = self._work, None
            work()


def archived_at_once(bank: OldBank) -> None:
    with bank.steps(Archiving) as steps:
        steps.prepare(None)
        steps.into_table("9999-01-01")


def soon() -> float:
    return time.monotonic() + 60


def batches(bank: OldBank, look: Any = lambda _: None) -> Batches:
    table = EventTable("bank.account")
    return Batches(table=table, handlers={"deposit": deposit}, open_session=bank.session, look=look)


@pytest.mark.parametrize("entity", ["e1", "new"])
def test_a_command_that_is_handled_and_archived_meanwhile_takes_effect_once(bank: OldBank, entity: str) -> None:
    """The unique keys of the table see nothing: another owner's event of this command is in the archive already."""
    first: list[Any] = []

    def meanwhile() -> None:
        other = batches(bank)
        first.extend(other.commit([sent(entity, 500), sent(entity, 501)], soon()))
        other.close()
        archived_at_once(bank)

    late = batches(bank, Between(meanwhile))
    (found,) = late.commit([sent(entity, 500)], soon())
    late.close()
    assert (found.response, found.version, found.is_repeated) == (first[0].response, first[0].version, True)
    events = ask(
        bank.server,
        "SELECT COUNT(*) FROM (SELECT command_id, entity_id FROM bank.account UNION ALL "
        f"SELECT command_id, entity_id FROM bank.account_archive) one WHERE entity_id = '{entity}' "
        "AND command_id = 'c500'",
    )
    assert events == [(1,)]


def test_batches_that_follow_each_other_are_right_where_their_entity_is_archived_meanwhile(bank: OldBank) -> None:
    told: list[Any] = []
    batch = batches(bank)
    batch.tell = told.extend
    places = iter(range(0, 1_000, 2))

    def handle(*numbers: int) -> None:
        commands = [sent(entity, number) for number in numbers for entity in ("e1", "other")]
        assert batch.handle(commands, soon(), next(places)) == len(commands)

    handle(500)
    handle(501)
    handle(502)
    batch.finish()
    archived_at_once(bank)
    handle(503)
    handle(504, 501)
    handle(505)
    batch.finish()
    batch.close()
    assert [one.is_repeated for one in told] == [False] * 10 + [True] * 2 + [False] * 2
    versions = [one.version for one in told[1::2]]
    assert versions == [1, 2, 3, 4, 5, 2, 6]
    both = (
        "(SELECT entity_id, version FROM bank.account UNION ALL SELECT entity_id, version FROM bank.account_archive) e"
    )
    ((count, different),) = ask(bank.server, f"SELECT COUNT(*), COUNT(DISTINCT entity_id, version) FROM {both}")
    assert count == different == len(bank.all) + 12


def refuses(*_: Any) -> Any:
    raise Refusal("not any more")


@pytest.mark.parametrize("is_remembered", [False, True], ids=["read", "remembered"])
@pytest.mark.parametrize("entity", ["e1", "new"])
def test_what_is_refused_now_and_was_taken_and_archived_meanwhile_gets_its_first_answer(
    bank: OldBank, entity: str, is_remembered: bool
) -> None:
    def meanwhile() -> None:
        other = batches(bank)
        other.commit([sent(entity, 500), sent(entity, 501)], soon())
        other.close()
        archived_at_once(bank)

    between = Between(None)
    late = batches(bank, between)
    if is_remembered:
        late.commit([sent(entity, 400)], soon())
    late.handlers = {"deposit": refuses}
    between._work = meanwhile
    (found,) = late.commit([sent(entity, 500)], soon())
    late.close()
    assert isinstance(found, Answer) and found.is_repeated, found


def test_what_is_refused_now_and_was_archived_since_its_entity_was_remembered_gets_its_first_answer(
    bank: OldBank,
) -> None:
    batch = batches(bank)
    batch.commit([sent("e1", 400)], soon())
    archived_at_once(bank)
    batch.handlers = {"deposit": refuses}
    (found,) = batch.commit([sent("e1", 3)], soon())
    batch.close()
    assert found == Answer(response={"balance": 6}, version=3, is_repeated=True)


def test_who_has_rights_on_the_table_alone_handles_commands(mysql_bank: OldBank) -> None:
    bank = mysql_bank
    ask(bank.server, "DROP USER IF EXISTS teller")
    ask(bank.server, "CREATE USER teller")
    ask(bank.server, "GRANT SELECT, INSERT ON bank.account TO teller")
    bank.address = replace(bank.address, user="teller")
    few = batches(bank)
    for archived in (False, True):
        if archived:
            assert bank.archive().returncode == 0
        found = few.commit([sent("young", 1 + archived), sent("young", 1)], soon())
        assert [getattr(one, "version", one) for one in found] == [1 + archived, 1]
    few.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", ["newest", "recorded"])
@pytest.mark.parametrize("way_of_it", ["archived", "restored"])
def test_an_event_that_moves_while_a_batch_reads_is_seen(
    bank: OldBank, monkeypatch: pytest.MonkeyPatch, place: str, way_of_it: str
) -> None:
    if way_of_it == "restored":
        archived_at_once(bank)

    def moves() -> None:
        if way_of_it == "archived":
            archived_at_once(bank)
            return
        with bank.steps(Restoring) as steps:
            steps.open_archive()
            steps.restore(None)

    between, read = Between(moves), getattr(EventTable, place)

    def reads(*arguments: Any) -> Any:
        found = read(*arguments)
        between()
        return found

    monkeypatch.setattr(EventTable, place, reads)
    batch = batches(bank)
    (found,) = batch.commit([sent("e1", 3)], soon())
    batch.close()
    assert (found.response, found.version, found.is_repeated) == ({"balance": 6}, 3, True)


# --- Killed, and run again ---


def killed(bank: OldBank, step: str, *arguments: str) -> None:
    died = bank.run.background(*arguments, VIEWTAIL_FAILPOINT=step)
    out, errors = died.communicate(60)
    assert died.returncode == -9, (out, errors)
    bank.check_nothing_is_lost_or_twice()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", ["in archive:1", "in archive:2", "after archive:1", "after archive:2", "before end:1"])
def test_archiving_that_was_killed_goes_on(bank: OldBank, step: str) -> None:
    command = ("archive", "bank.account", "--older-than", "90d", "--yes")
    killed(bank, step, *command)
    done = bank.run.command(*command)
    assert done.returncode == 0, done.stderr
    bank.check_nothing_is_lost_or_twice()
    assert len(bank.live()) == 4
    assert bank.restore("--all").returncode == 0
    assert bank.live() == bank.all


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "step",
    [
        *("before archive file:1", "in archive file:1", "after archive file:1", "after archive record:1"),
        *("in archive:1", "in archive:2", "after archive:1", "after archive:2"),
    ],
)
def test_archiving_into_files_that_was_killed_goes_on(mysql_bank: OldBank, tmp_path: Path, step: str) -> None:
    bank = mysql_bank
    command = ("archive", "bank.account", "--older-than", "90d", "--yes", *into("files", tmp_path))
    killed(bank, step, *command)
    done = bank.run.command(*command)
    assert done.returncode == 0, done.stderr
    bank.check_nothing_is_lost_or_twice()
    assert len(bank.live()) == 4
    assert len(files(tmp_path)) == 1, "what the killed one left is gone"
    assert bank.restore("--from", str(files(tmp_path)[0])).returncode == 0
    assert bank.live() == bank.all


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", ["in restore:1", "in restore:2", "after restore:1", "after restore:2"])
def test_restoring_that_was_killed_goes_on(mysql_bank: OldBank, tmp_path: Path, way: str, step: str) -> None:
    bank = mysql_bank
    assert bank.archive(*into(way, tmp_path)).returncode == 0
    killed(bank, step, "restore", "bank.account", "--all", "--yes")
    assert bank.restore("--all").returncode == 0
    assert bank.live() == bank.all and bank.archived() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_archiving_that_is_stopped_ends_after_a_step_and_goes_on(mysql_bank: OldBank, number: signal.Signals) -> None:
    bank = mysql_bank
    command = ("archive", "bank.account", "--older-than", "90d", "--yes")
    stopped = bank.run.background(*command, "--max-rows-per-second", "100")
    wait_for("it has begun", bank.archived)
    stopped.send_signal(number)
    _, told = stopped.communicate(20)
    assert stopped.returncode == 130 and "The same command goes on" in told
    bank.check_nothing_is_lost_or_twice()
    assert len(bank.live()) > 4
    assert "stopped" in bank.run.command("replays").stdout
    assert bank.run.command(*command).returncode == 0
    assert len(bank.live()) == 4


# --- What is wrong with files ---


@pytest.mark.parametrize(("step", "code"), [("after archive record:1", 0), ("after archive:1", 1)])
def test_a_file_that_is_lost_before_it_is_moved_is_written_again_if_nothing_is_in_it_alone(
    mysql_bank: OldBank, tmp_path: Path, step: str, code: int
) -> None:
    bank = mysql_bank
    killed(bank, step, "archive", "bank.account", "--older-than", "90d", "--yes", *into("files", tmp_path))
    (lost,) = files(tmp_path)
    lost.unlink()
    done = bank.archive(*into("files", tmp_path))
    assert done.returncode == code and (str(lost) in done.stderr) == bool(code), done.stderr
    bank.check_nothing_is_lost_or_twice()
    if not code:
        assert len(files(tmp_path)) == 1 and bank.restore("--all").returncode == 0
        assert bank.live() == bank.all


def test_a_damaged_file_is_named_and_nothing_comes_out_of_it(mysql_bank: OldBank, tmp_path: Path) -> None:
    bank = mysql_bank
    assert bank.archive(*into("files", tmp_path)).returncode == 0
    left = bank.live()
    (path,) = files(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    for arguments in (["--all"], ["--entity", "e1"], ["--from", str(path)]):
        done = bank.restore(*arguments)
        assert done.returncode == 1 and str(path) in done.stderr and "is damaged" in done.stderr
        assert bank.live() == left
    with pytest.raises(StoreError, match="is damaged"):
        bank.accounts.state("e1", version=3)
    path.unlink()
    with pytest.raises(StoreError, match="is not on this machine"):
        bank.accounts.state("e1", version=3)
    with bank.accounts.worker() as worker:
        assert worker.submit(sent("e1", 3)).result(60).is_repeated, "answers need no file"
    path.write_bytes(good)
    assert bank.restore("--all").returncode == 0
    assert bank.live() == bank.all


def test_an_event_that_was_changed_after_its_file_was_written_goes_into_another(
    mysql_bank: OldBank, tmp_path: Path
) -> None:
    bank = mysql_bank
    killed(
        bank,
        "after archive record",
        *("archive", "bank.account", "--older-than", "90d", "--yes", *into("files", tmp_path)),
    )
    ask(bank.server, "UPDATE bank.account SET response = '7' WHERE entity_id = 'e2' AND version = 100")
    before = bank.live()
    assert bank.archive(*into("files", tmp_path)).returncode == 0
    bank.check_nothing_is_lost_or_twice()
    assert len(bank.live()) == 4 and len(files(tmp_path)) == 2
    assert bank.restore("--all").returncode == 0
    assert bank.live() == before


def test_a_full_disk_loses_nothing(mysql_bank: OldBank, tmp_path: Path) -> None:
    bank = mysql_bank
    with SmallDisk(tmp_path / "disk", size_mib=2) as disk:
        disk.fill()
        done = bank.archive("--into-files", str(disk.path))
        assert done.returncode == 1 and "No space left on device" in done.stderr, done.stderr
        assert bank.live() == bank.all
        disk.free()
        done = bank.archive("--into-files", str(disk.path))
        assert done.returncode == 0, done.stderr
        bank.check_nothing_is_lost_or_twice()
        assert len(list(disk.path.iterdir())) == 1
        assert bank.restore("--all").returncode == 0
        assert bank.live() == bank.all


def test_files_come_back_the_newest_first(mysql_bank: OldBank, tmp_path: Path) -> None:
    bank = mysql_bank
    younger = "UPDATE bank.account SET committed_at = CURRENT_TIMESTAMP(6) - INTERVAL {} DAY WHERE version >= 150"
    ask(bank.server, younger.format(50))
    before = bank.live()
    assert bank.archive(*into("files", tmp_path)).returncode == 0
    (old,) = files(tmp_path)
    args = ("archive", "bank.account", "--older-than", "10d", "--yes", *into("files", tmp_path))
    assert bank.run.command(*args).returncode == 0
    (young,) = {*files(tmp_path)} - {old}
    refused = bank.restore("--from", str(old))
    assert refused.returncode == 2 and str(young) in refused.stderr
    assert bank.restore("--from", str(tmp_path / "files" / "other")).returncode == 2
    assert bank.restore("--from", str(young)).returncode == 0
    assert len(bank.live()) == 4 * 151
    bank.check_nothing_is_lost_or_twice()
    assert bank.restore("--from", str(old)).returncode == 0
    assert bank.live() == before


def test_a_state_that_text_cannot_hold_stays_in_the_table(mysql_bank: OldBank, tmp_path: Path) -> None:
    bank = mysql_bank
    inexact = "JSON_OBJECT('rate', CAST('118.99809999999999e0' AS DOUBLE))"
    ((text, again),) = ask(
        bank.server,
        f"SELECT CAST(s AS CHAR), CAST(CAST(CAST(s AS CHAR) AS JSON) AS CHAR) FROM (SELECT {inexact} AS s) a",
    )
    ask(bank.server, f"UPDATE bank.account SET state = {inexact} WHERE entity_id = 'e1' AND version = 100")
    before = bank.live()
    done = bank.archive(*into("files", tmp_path))
    assert done.returncode == 0, done.stderr
    assert len([row for row in bank.live() if row[1] == "e1"]) == (201 if text != again else 1)
    assert bank.restore("--all").returncode == 0
    assert bank.live() == before


# --- What is refused ---


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (["CREATE TRIGGER bank.t BEFORE DELETE ON bank.account FOR EACH ROW SET @a = 1"], "has the trigger t"),
        (
            ["CREATE TABLE bank.note (id BIGINT UNSIGNED, FOREIGN KEY (id) REFERENCES bank.account (event_id))"],
            "bank.note refers to",
        ),
        (["ALTER TABLE bank.account DROP KEY entity_command"], "is no table of event-sourced entities"),
        (["DROP TABLE bank.account"], "there is no table"),
        (["CREATE TABLE bank.account_archive (a INT)", "INSERT INTO bank.account_archive VALUES (1)"], "other columns"),
    ],
)
def test_what_cannot_be_archived_is_refused(bank: OldBank, before: list[str], says: str) -> None:
    for statement in before:
        ask(bank.server, statement)
    done = bank.archive()
    assert done.returncode == 2 and says in done.stderr, (done.returncode, done.stderr)
    assert "account" in done.stderr
    if "DROP TABLE" not in before[0]:
        assert bank.live() == bank.all


def test_missing_rights_are_named(bank: OldBank) -> None:
    ask(bank.server, "DROP USER IF EXISTS teller")
    ask(bank.server, "CREATE USER teller IDENTIFIED BY 't'")
    ask(bank.server, "GRANT ALL ON viewtail.* TO teller")
    for grant, says in (
        ("SELECT", "GRANT TRIGGER ON `bank`.`account`"),
        ("TRIGGER", "GRANT CREATE, ALTER"),
    ):
        ask(bank.server, f"GRANT {grant} ON bank.account TO teller")
        bank.run._environment["VIEWTAIL_SOURCE__URL"] = f"mysql://teller:t@127.0.0.1:{bank.server.port}"
        done = bank.archive()
        assert done.returncode == 1 and says in done.stderr, done.stderr
    assert bank.live() == bank.all


def test_one_table_is_archived_in_one_way_at_a_time(mysql_bank: OldBank, tmp_path: Path) -> None:
    bank = mysql_bank
    assert bank.archive(*into("files", tmp_path)).returncode == 0
    refused = bank.archive()
    assert refused.returncode == 2 and "--into-files" in refused.stderr
    assert bank.restore("--all").returncode == 0
    assert bank.archive().returncode == 0
    refused = bank.archive(*into("files", tmp_path))
    assert refused.returncode == 2 and "leave --into-files out" in refused.stderr
    bank.check_nothing_is_lost_or_twice()


def test_columns_of_ones_own_are_archived_into_a_table_only(mysql_bank: OldBank, tmp_path: Path) -> None:
    bank = mysql_bank
    ask(bank.server, "ALTER TABLE bank.account ADD COLUMN note INT DEFAULT 5")
    refused = bank.archive(*into("files", tmp_path))
    assert refused.returncode == 2 and "columns of your own (note)" in refused.stderr
    assert bank.archive().returncode == 0
    assert {note for (note,) in bank.archived("note")} == {5}
    ask(bank.server, "ALTER TABLE bank.account ADD COLUMN later INT")
    refused = bank.archive()
    assert refused.returncode == 2 and "other columns" in refused.stderr and "later" in refused.stderr


def test_views_of_single_events_are_named_and_nothing_moves_unasked(mysql_bank: OldBank) -> None:
    bank = mysql_bank
    views = """from viewtail import Entity, IndexTable

newest = {"version": "version", "append_only": True}
views = [
    IndexTable("by_event", Entity("bank.account"), value="entity_id"),
    IndexTable("by_balance", Entity("bank.account", key="entity_id", **newest), value="version"),
    IndexTable("by_command", Entity("bank.account", key="command_id", **newest), value="version"),
    IndexTable(
        "of_deposits",
        Entity("bank.account", key="entity_id", only={"command_name": "deposit"}, **newest),
        value="version",
    ),
]
"""
    (bank.folder / "views.py").write_text(views)
    done = bank.run.command("archive", "bank.account", "--older-than", "90d")
    assert done.returncode == 2 and "Nobody can be asked here" in done.stderr and "1,196 events" in done.stderr
    assert "lose those that are moved: mysql:by_event\n" in done.stderr
    assert "and lose it then: mysql:by_command, mysql:of_deposits\n" in done.stderr
    assert bank.live() == bank.all
    assert bank.archive("--older-than", "some time").returncode == 2


def test_two_at_once_are_refused(mysql_bank: OldBank) -> None:
    with mysql_bank.steps(Archiving) as steps, steps.alone():
        for done in (mysql_bank.archive(), mysql_bank.restore("--all")):
            assert done.returncode == 2 and "another viewtail archives or restores" in done.stderr


@pytest.mark.parametrize(("change", "code"), [("event_id = event_id", 0), ("response = '5'", 1)])
def test_an_event_that_is_there_already_must_be_the_same(mysql_bank: OldBank, change: str, code: int) -> None:
    bank = mysql_bank
    assert bank.archive().returncode == 0
    columns = "event_id, entity_id, version, command_id, command_name, request, response, state, committed_at"
    ask(
        bank.server,
        f"INSERT INTO bank.account ({columns}) SELECT {columns} FROM bank.account_archive WHERE entity_id = 'e2' "
        "AND version = 299",
    )
    ask(bank.server, f"UPDATE bank.account SET {change} WHERE entity_id = 'e2' AND version = 299")
    done = bank.restore("--entity", "e2")
    assert done.returncode == code, done.stderr
    ((event_id,),) = ask(bank.server, "SELECT event_id FROM bank.account WHERE entity_id = 'e2' AND version = 299")
    if code:
        assert f"event {event_id} is in bank.account already" in done.stderr
        assert len([row for row in bank.live() if row[1] == "e2"]) == 2
    else:
        assert [row for row in bank.live() if row[1] == "e2"] == [row for row in bank.all if row[1] == "e2"]
