"""Lines of keys, in every way that TOML writes a key."""

from __future__ import annotations

import pytest

from sndr.router.wire.toml_keys import KeyPath, locate, show

DOCUMENT = '''# comment with [brackets] and = signs
[server]
listen = [
  "a", # one
  "b]",
]
[[router.tiers]]
id = "a"
extra_body = { a.b = 1, c = [ {d = 1}, {e = """x
= y"""} ] }
[[router.tiers]]
id = 'b#'
[router.tiers.params]
"k \\"q" = """
[not.a.table]
"""
[router.model_routes]
"x.y" = "a"
llm . primary = "a"
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("server",), 2),
        (("server", "listen"), 3),
        (("server", "listen", 1), 5),
        (("router", "tiers"), 7),
        (("router", "tiers", 0), 7),
        (("router", "tiers", 0, "id"), 8),
        (("router", "tiers", 0, "extra_body", "a", "b"), 9),
        (("router", "tiers", 0, "extra_body", "c", 1, "e"), 9),
        (("router", "tiers", 1, "id"), 12),
        (("router", "tiers", 1, "params"), 13),
        (("router", "tiers", 1, "params", 'k "q'), 14),
        (("router", "model_routes", "x.y"), 18),
        (("router", "model_routes", "llm", "primary"), 19),
    ],
)
def test_every_spelling_of_a_key_is_found(path: KeyPath, line: int) -> None:
    assert locate(DOCUMENT).lines[path] == line


def test_text_in_strings_and_comments_is_no_key() -> None:
    assert ("not",) not in locate(DOCUMENT).lines


def test_a_missing_key_has_the_line_of_its_table() -> None:
    assert locate(DOCUMENT).line_of(("router", "tiers", 1, "base_url")) == 11
    assert locate("").line_of(("router",)) == 1


def test_repeated_keys_and_tables_are_listed_with_the_first_line() -> None:
    found = locate("a = 1\na = 2\n[t]\nb.c = 1\nb.c = 2\n[t]\n").repeated
    assert [(show(r.path), r.line, r.first_line) for r in found] == [("a", 2, 1), ("t.b.c", 5, 4), ("t", 6, 3)]


def test_what_is_not_toml_ends_the_search_quietly() -> None:
    assert locate('a = 1\nb = "open\nc = 3\n').lines == {("a",): 1, ("b",): 2}
    assert ("x",) in locate("x = " + "[" * 100_000).lines


def test_paths_are_shown_as_people_write_them() -> None:
    assert show(("router", "tiers", 0, "base_url")) == "router.tiers[0].base_url"
    assert show(("router", "model_routes", 'a."b')) == 'router.model_routes."a.\\"b"'
