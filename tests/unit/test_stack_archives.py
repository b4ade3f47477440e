"""How stack/ reads the machine's apt sources: both styles of sources.list(5)."""

from __future__ import annotations

from stack.archives import DebianSource, parse_deb822, parse_one_line


def test_a_deb822_source_keeps_its_keyring() -> None:
    text = """\
# a comment
Types: deb deb-src
URIs: http://archive.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /keys/archive.gpg
"""
    assert list(parse_deb822(text)) == [
        DebianSource(
            "http://archive.example/debian",
            ("bookworm", "bookworm-updates"),
            ("main", "contrib"),
            "/keys/archive.gpg",
        )
    ]


def test_disabled_and_source_only_paragraphs_are_left_out() -> None:
    text = (
        "Types: deb\nURIs: http://a.example\nSuites: x\nComponents: main\nEnabled: no\n\n"
        "Types: deb-src\nURIs: http://b.example\nSuites: x\nComponents: main\n"
    )
    assert list(parse_deb822(text)) == []


def test_an_inline_key_comes_through_unchanged() -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
    text = f"Types: deb\nURIs: http://a.example\nSuites: x\nComponents: main\n{key}"
    (source,) = parse_deb822(text)
    stanza = source.stanza()
    assert list(parse_deb822(stanza)) == [source]
    assert "\n .\n abc\n" in stanza


def test_a_one_line_source_with_and_without_options() -> None:
    text = (
        "# deb http://old.example x main\n"
        "deb [arch=amd64 signed-by=/keys/archive.gpg] http://archive.example/debian bookworm main contrib # why\n"
        "deb-src http://archive.example/debian bookworm main\n"
        "deb http://other.example/debian sid main\n"
    )
    assert list(parse_one_line(text)) == [
        DebianSource("http://archive.example/debian", ("bookworm",), ("main", "contrib"), "/keys/archive.gpg"),
        DebianSource("http://other.example/debian", ("sid",), ("main",), ""),
    ]
