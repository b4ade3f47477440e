"""What a column is on a server of another kind."""

from __future__ import annotations

import pytest

from projectors.stores.index_tables.other_kind import nearest_collation, nearest_type
from viewtail.servers.facts import MARIADB, MYSQL


@pytest.mark.parametrize(
    ("name", "on_mysql", "on_mariadb"),
    [
        ("utf8mb4_0900_ai_ci", "utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci"),
        ("utf8mb4_0900_as_cs", "utf8mb4_0900_as_cs", "utf8mb4_uca1400_nopad_as_cs"),
        ("utf8mb4_0900_bin", "utf8mb4_0900_bin", "utf8mb4_nopad_bin"),
        ("utf8mb4_nopad_bin", "utf8mb4_0900_bin", "utf8mb4_nopad_bin"),
        ("utf8mb4_uca1400_ai_ci", "utf8mb4_0900_ai_ci", "utf8mb4_uca1400_ai_ci"),
        ("utf8mb4_uca1400_nopad_as_ci", "utf8mb4_0900_as_ci", "utf8mb4_uca1400_nopad_as_ci"),
        ("latin1_swedish_nopad_ci", "latin1_swedish_ci", "latin1_swedish_nopad_ci"),
        ("utf8mb4_general_ci", "utf8mb4_general_ci", "utf8mb4_general_ci"),
        ("utf8mb4_ja_0900_as_cs", "utf8mb4_ja_0900_as_cs", "utf8mb4_ja_0900_as_cs"),
        ("utf8mb4_uca1400_german2_ai_ci", "utf8mb4_uca1400_german2_ai_ci", "utf8mb4_uca1400_german2_ai_ci"),
    ],
)
def test_a_collation_is_the_nearest_one_or_stays_as_it_is(name: str, on_mysql: str, on_mariadb: str) -> None:
    assert nearest_collation(name, MYSQL) == on_mysql
    assert nearest_collation(name, MARIADB) == on_mariadb


def test_types_of_one_kind_alone_become_what_holds_the_same_values() -> None:
    assert nearest_type("json", MARIADB) == ("longtext", "utf8mb4_bin")
    assert nearest_type("geomcollection", MARIADB) == ("geometrycollection", None)
    assert nearest_type("inet6", MYSQL) == ("varchar(45)", "utf8mb4_0900_bin")
    assert nearest_type("json", MYSQL) is nearest_type("uuid", MARIADB) is nearest_type("int", MYSQL) is None
