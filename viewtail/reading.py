"""Opens a view for reading, from Python and from the command line: settings and declarations in, a Reader out."""

from __future__ import annotations

from collections.abc import Callable

from projectors.stores.registry import store_of
from projectors.views import View
from viewtail import declarations
from viewtail.composition import deploy
from viewtail.operations import reading
from viewtail.servers.patience import QUESTION
from viewtail.settings import Settings, load


def open_reader(
    view: str | View, settings: Settings | None, can_answer: Callable[[View], bool] = lambda _: True
) -> reading.Reader:
    """A reader of a view, as declared or by its name in the views of the settings. Raises MisuseError.

    Where several views have the name, it is the one that `can_answer`.
    """
    settings = (settings or load(None)).asked_with(QUESTION.once())
    chosen = view if isinstance(view, View) else reading.choose(declarations.load(settings.views), view, can_answer)
    settings.check_stores([chosen])
    catalog = deploy(settings, [chosen])
    (declared,) = catalog.views
    store = store_of(chosen)
    own, of_all = catalog.servers.open_own, can_answer is reading.is_searched  # one index has the rows of all sources
    bound, remark = reading.found(own, settings.store_address(), catalog.database, declared, of_all=of_all)
    return reading.Reader(
        view=bound,
        remark=remark,
        open_source=catalog.servers.open_source,
        open_reader=lambda: store.reader(catalog.access(store), bound),
    )
