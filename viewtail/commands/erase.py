"""`viewtail forget ENTITY KEY`: what operations/erase.py does, and the proof that it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from viewtail import declarations
from viewtail.commands.output import print_json, print_remark
from viewtail.composition import deployed_to_ask
from viewtail.entities.archives import archived_rows
from viewtail.operations import erase as operation
from viewtail.operations.erase import Looked, Proof
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings


def erase(loaded: Settings, entity: str, key: str, *, by: str | None, timeout_s: float, as_json: bool) -> int:
    """Erase what was made of an entity whose row is gone, and prove it; returns the exit code."""
    views = declarations.load(loaded.views)
    chosen = operation.views_of(entity, views)
    loaded.check_stores(chosen)
    catalog = deployed_to_ask(loaded, chosen, COMMAND)
    catalog.create_tables()
    bound = operation.of_one_key(catalog.views, by)

    def waits(names: Sequence[str], troubles: Sequence[str]) -> None:
        print_remark(f"waiting until the pipelines of {', '.join(names)} have passed this moment")
        for trouble in troubles:
            print_remark(f"waiting: {trouble}")

    proof = operation.erase(
        catalog,
        bound,
        views,
        key,
        archived=lambda: archived_rows(loaded.primary_address(), bound[0].table),
        timeout_s=timeout_s,
        waits=waits,
    )
    if as_json:
        print_json({**asdict(proof), "is_erased": proof.is_erased})
    else:
        _print(proof)
    return 0 if proof.is_erased else 1


def _print(proof: Proof) -> None:
    print(f"{proof.entity} {proof.key}, at {proof.proven_at}: no row in the table. Looked at:")
    _print_looked(proof.looked)
    print(f"  dead letters: {proof.letters} deleted" if proof.letters else "  dead letters: none")
    _print_looked(proof.own)
    print("Not viewtail's, and not looked at:")
    for rest in proof.rests:
        print(f"  {rest.what}; until {rest.until}")
    if not proof.is_known:
        print("No view and none of viewtail's tables knew this key: is it the one that you mean?")
    elif proof.is_erased:
        print("Erased: nothing stays but what is named here")
    if not proof.is_erased:
        left = sum(not place.is_clean for place in (*proof.looked, *proof.own))
        print(f"Not erased: see what is to do in {left} of these places, then run this command again")


def _print_looked(looked: Sequence[Looked]) -> None:
    for place in looked:
        print(_line(place))
        if place.stays:
            print(f"    stays: {place.stays}; until {place.until}")
        if place.run:
            print(f"    to do: {place.run}")


def _line(place: Looked) -> str:
    erased = f"; it held {place.held}, which this command erased" if place.was_erased else ""
    return f"  {'ok  ' if place.is_clean else 'LEFT'}  {place.view}, {place.place}: {place.found}{erased}"
