"""Counts in sentences: '1 key is', '2 keys are'."""

from __future__ import annotations

_SINGULAR_ENDINGS = (("ies", "y"), ("sses", "ss"), ("s", ""))
_SINGULAR_VERBS = {"are": "is", "were": "was", "have": "has"}


def counted(count: int, nouns: str, verb: str = "") -> str:
    """'1 entity', '2,000 entities'; with a verb '1 entity is', '2,000 entities are'.

    Args:
        nouns: in the plural; the last word of several is the noun.
        verb: in the plural.
    """
    text = f"{count:,} {_singular(nouns) if count == 1 else nouns}"
    return f"{text} {agreeing(count, verb)}" if verb else text


def agreeing(count: int, verb: str) -> str:
    """The verb, given in the plural, as it is said of so many."""
    return _SINGULAR_VERBS.get(verb, f"{verb}s") if count == 1 else verb


def _singular(nouns: str) -> str:
    plural, singular = next(endings for endings in _SINGULAR_ENDINGS if nouns.endswith(endings[0]))
    return nouns.removesuffix(plural) + singular
