"""What each mask makes of each type, which columns are masked, and what a masked column cannot be used for."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from ingest.binlog import column_types as types
from ingest.binlog.kind import BinlogKind
from ingest.binlog.own_forms import form_of
from ingest.binlog.table_effects import meant
from ingest.binlog.table_map import MapColumn, TableMap
from ingest.ddl import as_written, read
from ingest.kafka.kind import KafkaKind
from offsets.views import _column_from, _kept
from projectors.binding import bind, declaration_hash
from projectors.catalog import bound_for, check_source
from projectors.masking import with_masks
from projectors.projection import followed_tables
from projectors.related import Count, Many, Min, One
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.stores.topics.views import Topic
from projectors.views import Entity, Group, View
from viewtail.changes.batches import Followed, Forms, TableChangeKind, Unreadable
from viewtail.changes.envelope_reading import EnvelopeReader
from viewtail.changes.errors import DeclarationError, MisuseError
from viewtail.changes.masks import NO_SECRET, Masks, careful_mask_of, mask_of, masked
from viewtail.changes.tables import Column, Kind, Table
from viewtail.operations.given import indexed_value
from viewtail.operations.people import peoples_columns

SECRET = b"no one will ever guess this"
MASKS = Masks(secret=SECRET)
_TEXT: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_0900_ai_ci"}


def column(name: str, declared: str, kind: Kind, **more: Any) -> Column:
    return Column(name=name, declared=declared, kind=kind, **{"is_nullable": True, **more})


ID = column("id", "int", Kind.INTEGER, is_nullable=False)
EMAIL = column("email", "varchar(100)", Kind.TEXT, length=100, tags=("PPI",), is_nullable=False, **_TEXT)
PHONE = column("phone", "varchar(20)", Kind.TEXT, length=20, **_TEXT)
BIRTH = column("birth", "date", Kind.DATE)
INCOME = column("income", "decimal(10,2)", Kind.DECIMAL, precision=10, scale=2, tags=("PPI",))
PLACE = column("place", "point", Kind.GEOMETRY, tags=("GEO",))
PLAN = column("plan", "varchar(20)", Kind.TEXT, length=20, **_TEXT)
USER = Table(
    schema="shop",
    name="user",
    columns=(ID, EMAIL, PHONE, BIRTH, INCOME, PLACE, PLAN),
    primary_key=("id",),
    unique_keys=(("email",),),
    unique_names=("email",),
)
ORDER = Table(
    schema="shop",
    name="order",
    columns=(ID, column("user_id", "int", Kind.INTEGER), replace(EMAIL, name="user_email"), PLAN, INCOME),
    primary_key=("id",),
)
TABLES = {"user": USER, "order": ORDER}


def described(schema: str, name: str) -> Table:
    return TABLES[name]


def hashed(text: str) -> str:
    return hmac.new(SECRET, text.encode(), hashlib.sha256).hexdigest()


def how(table: Table, declared: Mapping[str, str] = {}, unmasked: tuple[str, ...] = ()) -> dict[str, str]:
    columns = MASKS.table(table, declared, unmasked).columns
    return {one.name: one.mask.how for one in columns if one.mask is not None}


# --- Values ---


@pytest.mark.parametrize(
    ("stored", "value", "text"),
    [
        (PLAN, "Zoë", "Zoë"),
        (ID, -7, "-7"),
        (INCOME, Decimal("1.50"), "1.50"),
        (column("d", "double", Kind.DOUBLE), -0.0, "-0.0"),
        (column("d", "double", Kind.DOUBLE), 0.0, "0.0"),
        (column("b", "binary(2)", Kind.BYTES, length=2), b"\x00\xff", "00ff"),
        (BIRTH, "1984-02-03", "1984-02-03"),
        (column("j", "json", Kind.JSON), '{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_hash_is_the_hmac_of_the_text_that_the_types_page_gives_the_value(
    stored: Column, value: Any, text: str
) -> None:
    made = masked(stored, "hash", SECRET)
    assert mask_of(made)(value) == hashed(text)
    assert (made.kind, made.declared, made.charset, made.length) == (Kind.TEXT, "varchar(64)", "ascii", 64)
    assert made.stored is stored and made.is_nullable == stored.is_nullable


def test_doubles_that_are_equal_and_have_other_texts_have_other_hashes() -> None:
    mask = mask_of(masked(column("d", "double", Kind.DOUBLE), "hash", SECRET))
    assert [mask(value) for value in (0.0, -0.0, 0.0)] == [hashed("0.0"), hashed("-0.0"), hashed("0.0")]


def test_a_secret_that_is_longer_than_a_block_is_hashed_as_hmac_says() -> None:
    secret = b"x" * 100
    value = mask_of(masked(PLAN, "hash", secret))("a")
    assert value == hmac.new(secret, b"a", hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("+49 151 2345678", "****5678"),
        ("12345678", "****5678"),
        ("1234567", "*******"),
        ("", ""),
        ("üüüüßßßß", "****ßßßß"),
    ],
)
def test_last4_shows_the_end_of_a_text_that_is_long_enough(value: str, shown: str) -> None:
    made = masked(PHONE, "last4")
    assert mask_of(made)(value) == shown and len(shown) <= made.length
    assert mask_of(masked(ID, "last4"))(123456789) == "****6789"


def test_a_year_is_a_number_and_null_is_null() -> None:
    assert mask_of(masked(BIRTH, "year"))("1984-02-03") == 1984
    assert mask_of(masked(column("at", "datetime(6)", Kind.DATETIME, scale=6), "year"))("0000-00-00 00:00:00") == 0
    made = masked(EMAIL, "null")
    assert mask_of(made)("x") is None and made.is_nullable and made.kind is Kind.TEXT


@pytest.mark.parametrize("way", ["hash", "last4"])
def test_a_text_that_cannot_be_read_stays_that(way: str) -> None:
    unreadable = Unreadable("plan")
    assert careful_mask_of(masked(PLAN, way, SECRET))(unreadable) is unreadable


# --- Which columns ---


def test_a_tag_alone_hashes_texts_and_leaves_nothing_of_others() -> None:
    assert how(USER) == {"email": "hash", "income": "null", "place": "null"}


def test_a_declaration_says_how_whether_or_not_there_is_a_tag() -> None:
    declared = {"email": "null", "phone": "last4", "birth": "year"}
    assert how(USER, declared) == {**declared, "income": "null", "place": "null"}


def test_a_view_gets_what_it_says_it_needs() -> None:
    assert how(USER, {"phone": "last4"}, ("phone", "email")) == {"income": "null", "place": "null"}


def test_only_the_tags_of_the_settings_count() -> None:
    table = Masks(frozenset({"GEO"}), SECRET).table(USER, {}, ())
    assert [one.name for one in table.columns if one.mask] == ["place"]


def test_a_generated_column_is_masked_with_what_it_is_made_from() -> None:
    lower = replace(PLAN, name="lower", is_generated=True, made_from=frozenset({"email"}))
    domain = replace(PLAN, name="domain", is_generated=True, made_from=frozenset({"lower"}))
    unknown = replace(PLAN, name="unknown", is_generated=True, made_from=None)
    other = replace(PLAN, name="other", is_generated=True, made_from=frozenset({"plan"}))
    table = replace(USER, columns=(ID, EMAIL, PLAN, domain, lower, unknown, other))
    assert how(table) == dict.fromkeys(("email", "domain", "lower", "unknown"), "hash")
    assert how(table, {}, ("email",)) == {}
    assert how(table, {}, ("domain",)) == dict.fromkeys(("email", "lower", "unknown"), "hash")


def test_the_case_of_a_name_in_an_expression_makes_no_difference() -> None:
    plain = replace(PHONE, is_generated=True)
    table = replace(
        USER,
        columns=(
            ID,
            replace(EMAIL, name="Email"),
            replace(plain, name="domain", made_from=frozenset({"EMAIL"})),
            replace(plain, name="Ending", made_from=frozenset({"Domain"})),
            replace(plain, name="short", made_from=frozenset({"ending"})),
        ),
    )
    forms = {each.name: each.mask is not None for each in MASKS.table(table, {}, []).columns}
    assert forms == {"id": False, "Email": True, "domain": True, "Ending": True, "short": True}


def test_a_table_that_is_masked_already_is_masked_anew() -> None:
    once = MASKS.table(USER, {}, ())
    assert MASKS.table(once, {}, ()) == once
    assert MASKS.table(once, {}, ("email", "income", "place")) == USER == once.stored


def test_no_text_of_a_column_has_the_secret() -> None:
    assert "guess" not in repr(MASKS) and "guess" not in repr(MASKS.table(USER, {}, ()))


# --- Declarations ---


def refused(*views: View, masks: Masks = MASKS) -> str:
    with pytest.raises(DeclarationError) as raised:
        bound_for(BinlogKind(), views, described, masks)
    return str(raised.value)


@pytest.mark.parametrize(
    ("entity", "view", "why"),
    [
        ({"masked": {"emial": "hash"}}, {}, "masked: shop.user has no column emial; did you mean email?"),
        ({}, {"unmasked": ["emial"]}, "unmasked: shop.user has no column emial; did you mean email?"),
        ({}, {"unmasked": ["shop.order.plan"]}, "unmasked: shop.order.plan is of no table of the view"),
        ({"masked": {"phone": "year"}}, {}, "masked: column phone of shop.user is VARCHAR(20), and year is for dates"),
        ({"masked": {"birth": "last4"}}, {}, "column birth of shop.user is DATE, and last4 is for texts and integers"),
        ({"masked": {"id": "hash"}}, {}, "column id of shop.user is masked, and it is part of the key"),
        ({"key": "email"}, {}, "column email of shop.user is masked, and it is part of the key"),
        ({"version": "plan", "masked": {"plan": "hash"}}, {}, "it is the version column"),
        ({"body": "plan", "codec": "json", "masked": {"plan": "hash"}}, {}, "it is the body"),
    ],
)
def test_what_cannot_be_masked_is_refused_with_its_name(entity: dict[str, Any], view: dict[str, Any], why: str) -> None:
    assert why in refused(RedisHash("user", Entity("shop.user", **entity), fields=["phone"], **view))


@pytest.mark.parametrize("given", [{}, ["email"], {"email": "md5"}, {"": "hash"}, {1: "hash"}])
def test_masked_is_a_dict_of_columns_and_masks(given: Any) -> None:
    with pytest.raises(DeclarationError, match=r"Entity\('shop.user'\): masked"):
        Entity("shop.user", masked=given)


def test_a_hash_without_a_secret_is_refused_with_what_to_set() -> None:
    said = refused(RedisHash("user", Entity("shop.user"), fields=["email"]), masks=NO_SECRET)
    assert "VIEWTAIL_MASKS__SECRET" in said and "column email of shop.user is masked by a hash" in said
    (bound,) = bind([RedisHash("user", Entity("shop.user"), fields=["phone"])], described)
    email = bound.table.column("email")
    assert email is not None and email.mask is not None and email.mask.how == "null", "who reads whole rows gets none"


@pytest.mark.parametrize(
    ("entity", "why"),
    [
        (Entity("shop.user", related={"n": Count("shop.order", by="user_email")}, key="email"), "rows are found"),
        (
            Entity("shop.order", related={"u": One("shop.user", on="user_email", to="email")}),
            "column user_email of shop.order is masked, and rows are found",
        ),
        (
            Entity("shop.user", related={"o": Many("shop.order", by="user_id", order_by=["user_email"])}),
            "column user_email of shop.order is masked, and rows are found, put in order or added up by it",
        ),
        (Entity("shop.user", related={"m": Min("shop.order", "income", by="user_id")}), "Min is made of it"),
        (
            Entity("shop.user", related={"n": Count("shop.order", by="user_id", where="income > 5")}),
            "the condition asks for it",
        ),
        (Group("shop.user", by="email", values={"n": Count()}), "rows are grouped by it"),
        (Group("shop.user", by="plan", values={"most": Min("income")}), "Min is made of it"),
        (Group("shop.user", by="plan", values={"n": Count(where="income > 5")}), "the condition asks for it"),
    ],
)
def test_a_masked_column_finds_groups_and_orders_nothing(entity: Entity, why: str) -> None:
    assert why in refused(RedisJson("doc", entity, document=lambda row: dict(row)))


def test_related_rows_are_masked_by_their_tags_and_by_full_names() -> None:
    related = {"orders": Many("shop.order", by="user_id")}

    def fields(entity: Entity, **more: Any) -> dict[str, str]:
        view = RedisJson("doc", entity, document=lambda row: {"orders": row["orders"]}, **more)
        (bound,) = bound_for(BinlogKind(), [view], described, MASKS)
        shown = bound.table.column("orders")
        assert shown is not None
        return {field.name: "" if field.mask is None else field.mask.how for field in shown.fields}

    plain = {"id": "", "user_id": "", "user_email": "hash", "plan": "", "income": "null"}
    assert fields(Entity("shop.user", related=related)) == plain
    named = Entity("shop.user", related=related, masked={"shop.order.plan": "last4"})
    assert fields(named, unmasked=["shop.order.income"]) == {**plain, "plan": "last4", "income": ""}


def test_what_one_entity_masks_is_masked_for_the_views_of_all() -> None:
    user = Entity("shop.user", masked={"phone": "last4"})
    order = Entity("shop.order", related={"user": One("shop.user", on="user_id")})
    document = RedisJson("doc", order, document=lambda row: {"phone": row["user"]["phone"]})
    others = [IndexTable("by_phone", user, value="phone"), RedisHash("plain", Entity("shop.user"), fields=["phone"])]
    *_, bound, plain = bind(with_masks([document, *others]), described, MASKS)
    assert plain.is_masked("phone") and bound.is_masked("phone")
    (shown,) = bind(with_masks([document, others[0]])[:1], described, MASKS)[0].table.columns[-1].fields
    assert shown.mask is not None and shown.mask.how == "last4"
    with pytest.raises(DeclarationError, match="by 'null', and by 'last4' for view mysql:by_phone"):
        with_masks([*others, RedisHash("other", Entity("shop.user", masked={"phone": "null"}), fields=["phone"])])


def test_a_mask_holds_for_a_table_whose_name_is_written_in_another_case() -> None:
    """A server with lower_case_table_names = 1 has one table; where there are two, a mask too many does no harm."""
    user = Entity("Shop.User", masked={"phone": "last4"})

    def folding(schema: str, name: str) -> Table:
        return TABLES[name.lower()]

    related = {"user": One("shop.user", on="user_id")}
    document = RedisJson(
        "doc", Entity("shop.order", related=related), document=lambda row: {"phone": row["user"]["phone"]}
    )
    by_phone, plain = IndexTable("by_phone", user, value="phone"), RedisHash("p", Entity("SHOP.USER"), fields=["phone"])
    *of_user, derived = bound_for(BinlogKind(), with_masks([by_phone, plain, document]), folding, MASKS)
    assert [view.is_masked("phone") for view in of_user] == [True, True]
    (shown,) = derived.table.columns[-1].fields
    assert shown.mask is not None and shown.mask.how == "last4"
    # The name as it is written comes first, and what is another table need not have the column.
    other = RedisHash("o", Entity("shop.user", masked={"phone": "null"}), fields=["phone"])
    for view, expected in zip(bind(with_masks([by_phone, other]), folding, MASKS), ("last4", "null"), strict=True):
        stored = view.table.column("phone")
        assert stored is not None and stored.mask is not None and stored.mask.how == expected
    (narrow,) = bind(
        with_masks([RedisHash("n", Entity("SHOP.USER"), fields=["id"]), by_phone])[:1],
        lambda *_: replace(USER, columns=(ID,)),
        MASKS,
    )
    assert not narrow.is_masked("id")
    order = Entity("shop.order", related=related, masked={"Shop.User.fone": "null"})
    with pytest.raises(DeclarationError, match=r"Shop\.User\.fone is of no table of the view"):
        bind(with_masks([RedisJson("doc", order, document=lambda row: dict(row))]), folding, MASKS)


def test_views_of_one_stream_have_a_column_in_one_form() -> None:
    user = Entity("shop.user")
    raw = IndexTable("by_email", user, value="email", unmasked=["email"])
    said = refused(raw, IndexTable("again", user, value="email"))
    assert (
        "view mysql:again: column email of shop.user is masked (hash) for it and unmasked for view mysql:by_email"
        in said
    )
    # Another store has a stream of its own, and a view that does not use the column has no say.
    views = [raw, IndexTable("by_plan", user, value="plan"), RedisHash("user", user, fields=["email"])]
    bound = bound_for(BinlogKind(), views, described, MASKS)
    for views_of, mask in ((bound[:2], None), (bound[1::-1], None), (bound[2:], "hash")):
        (followed,) = followed_tables(views_of).values()
        email = followed.table.column("email")
        assert email is not None and (email.mask and email.mask.how) == mask


def test_a_mask_changes_the_fingerprint_and_no_mask_changes_none() -> None:
    def made(masks: Masks = MASKS, **more: Any) -> str:
        entity = Entity("shop.user", **more)
        return bind([RedisHash("user", entity, fields=["plan", "phone"])], described, masks)[0].fingerprint

    assert made() == made(Masks(secret=b"another one, as long")), "nothing masked is used"
    prints = [made(), made(masked={"phone": "hash"}), made(masked={"phone": "last4"}), made(masked={"phone": "null"})]
    prints.append(made(Masks(secret=b"another one, as long"), masked={"phone": "hash"}))
    assert len(set(prints)) == len(prints)
    before, after = (
        RedisHash("user", Entity("shop.user", **more), fields=["phone"]) for more in ({}, {"masked": {"phone": "hash"}})
    )
    assert declaration_hash(before) != declaration_hash(after)


def test_unmasked_is_for_the_binlog_since_a_topic_has_what_its_writer_put_there() -> None:
    view = RedisHash("user", Entity("shop.user"), fields=["email"], unmasked=["email"])
    with pytest.raises(DeclarationError, match="unmasked= is for views that are kept from the database itself"):
        check_source(KafkaKind(), [view])


def test_stores_see_the_type_that_the_mask_makes() -> None:
    user = Entity("shop.user", masked={"income": "hash", "birth": "year"})
    (bound,) = bind([SearchIndex("user", user, fields=["income", "birth", "email"])], described, MASKS)
    assert [(one.name, one.declared) for one in bound.values] == [
        ("income", "varchar(64)"), ("birth", "smallint unsigned"), ("email", "varchar(64)")
    ]  # fmt: skip


# --- What is read ---


def test_a_column_of_another_form_is_masked_too_and_one_that_is_gone_is_null() -> None:
    """Topics read rows in the form that their table had."""
    table = MASKS.table(USER, {}, ())
    gone = _column_from(orjson.loads(orjson.dumps(_kept(masked(replace(PLAN, name="gone"), "hash", SECRET)))))
    followed = Followed(table, ("id", "email"), forms=Forms(fixed=frozenset({"id"}), former=(gone,)))
    seen = TableMap(schema="shop", name="user", columns=(
        MapColumn(name="id", type=types.LONG, metadata=0, is_nullable=False),
        MapColumn(name="email", type=types.LONGLONG, metadata=0, is_nullable=True),
        MapColumn(name="gone", type=types.VARCHAR, metadata=80, is_nullable=True, collation=255),
    ))  # fmt: skip
    _, email, former = form_of(seen, followed).table.columns
    assert email.mask is not None and (email.mask.how, email.stored.declared) == ("hash", "bigint")
    assert former.mask is not None and former.mask.how == "null" and former.stored.declared == "varchar(20)"


def test_a_column_is_kept_without_its_secret() -> None:
    kept = orjson.dumps([_kept(one) for one in MASKS.table(USER, {}, ()).columns])
    assert b"guess" not in kept and SECRET.hex().encode() not in kept


def test_statements_are_judged_by_the_types_that_the_table_has() -> None:
    followed = Followed(MASKS.table(USER, {}, ()), ("id", "email"))
    text = "ALTER TABLE shop.user MODIFY email VARCHAR(200) NOT NULL"
    found = meant(followed, [*read(text, "shop", as_written)], is_strict=True, case_tells=True)
    assert found is not None and found[0] is TableChangeKind.WIDENED
    narrower = meant(followed, [*read(text.replace("200", "80"), "shop", as_written)], is_strict=True, case_tells=True)
    assert narrower is not None and narrower[0] is None, "it has more than the 64 characters of the hash"


def message(image: Mapping[str, Any], **source: Any) -> bytes:
    about = {"db": "shop", "table": "user", "file": "binlog.000001", "pos": 4, **source}
    return orjson.dumps({"before": None, "after": image, "source": about, "op": "c"})


@pytest.mark.parametrize(
    ("source", "email"),
    [({"sequence": "77"}, hashed("a@b.c")), ({"sequence": "77"}, "a@b.c"), ({}, "a@b.c")],
    ids=["written masked", "written before the mask", "written by Debezium"],
)
def test_messages_give_masked_values_whoever_wrote_them(source: dict[str, Any], email: str) -> None:
    table = MASKS.table(USER, {"phone": "last4", "birth": "year"}, ())
    followed = Followed(table, ("id", "email", "phone", "birth", "income"))
    reader = EnvelopeReader(followed, [ID])
    birth = "1984-02-03Z" if source else 5146  # days since 1970
    image = {"id": 1, "email": email, "phone": "+49 151 2345678", "birth": birth, "income": "1.50"}
    for again in range(2):
        change = reader.read(message(image, **source))
        assert change.rows == [(1, hashed("a@b.c"), "****5678", 1984, None)], again
    assert b"a@b.c" not in repr(reader.read(message({**image, "email": 7}, **source))).encode()


# --- Reading views ---


def test_find_masks_its_argument_and_no_message_has_it() -> None:
    number = masked(ID, "hash", SECRET)
    assert indexed_value("7", number) == indexed_value(7, number) == hashed("7")
    assert indexed_value("+49 151 2345678", masked(PHONE, "last4")) == "****5678"
    assert indexed_value("****5678", masked(ID, "last4")) == "****5678"
    assert indexed_value("1984-02-03", masked(BIRTH, "year")) == indexed_value("1984", masked(BIRTH, "year")) == 1984
    assert indexed_value(None, number) is None
    for made in (number, masked(BIRTH, "year"), masked(EMAIL, "null")):
        with pytest.raises(MisuseError) as raised:
            indexed_value("canary-5", made)
        assert "canary" not in str(raised.value) and made.name in str(raised.value)


def test_the_list_of_peoples_data_has_each_column_with_each_view_and_those_that_go_nowhere() -> None:
    views = [
        RedisHash("user", Entity("shop.user", masked={"phone": "last4"}), fields=["phone", "email"]),
        Topic("users", Entity("shop.user"), fields=["email"], unmasked=["email"]),
    ]
    found = [
        (one.column, one.tags, one.view, one.form) for one in peoples_columns(bind(views, described, MASKS), MASKS, {})
    ]
    assert found == [
        ("email", ["PPI"], "kafka:users", "as it is"), ("email", ["PPI"], "redis:user", "hash"),
        ("income", ["PPI"], None, None), ("phone", [], "redis:user", "last4"), ("place", ["GEO"], None, None),
    ]  # fmt: skip
