"""The message about incidents in the form of its reader: Slack, Teams, or plain JSON.

Slack's form is that of incoming webhooks: `{"text": ...}`, with `&`, `<` and `>` as entities. Teams' is an Adaptive
Card, which Workflows and the older connectors take. None has a reason or a key in it, as no incident's words have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args
from urllib.parse import quote, urlsplit

import orjson

from viewtail.changes.console_paths import pipeline_path, view_path
from viewtail.operations.incidents import lasting

Form = Literal["slack", "teams", "json"]
MOST_SHOWN = 10  # of each, in a message for people
_TEAMS = (".logic.azure.com", ".powerplatform.com", ".powerautomate.com", ".flow.microsoft.com", ".webhook.office.com")
_SLACK = ("hooks.slack.com", "hooks.slack-gov.com")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An incident that is to be told, or the end of one."""

    kind: str
    pipeline: str
    view: str | None
    words: str
    mend: str  # '' where it is over
    page: str | None  # the console's
    lasted_s: float

    @property
    def line(self) -> str:
        return f"{self.words}. {self.mend}" if self.mend else self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """All that is told at once.

    Args:
        deployment: its title, for people who have several.
        was: incidents that were over before they could be told.
    """

    deployment: str
    began: Sequence[Notice] = ()
    over: Sequence[Notice] = ()
    was: Sequence[Notice] = ()
    note: str = ""  # in place of incidents

    @property
    def title(self) -> str:
        counts = [f"{len(self.began)} not well"] if self.began else []
        counts += [f"{len(self.over) + len(self.was)} over"] if self.over or self.was else []
        return f"viewtail, {self.deployment}: {', '.join(counts) or self.note}"

    def lines(self) -> Iterator[tuple[str, str | None]]:
        """Each line with its page, if it has one."""
        for notices in (self.began, self.over, self.was):
            yield from ((notice.line, notice.page) for notice in notices[:MOST_SHOWN])
            if (left := len(notices) - MOST_SHOWN) > 0:
                yield f"and {left} more: viewtail status", None


def form_of(url: str, chosen: str) -> Form:
    """The form that is chosen, or the one of the address's host."""
    if chosen in get_args(Form):
        return cast(Form, chosen)
    host = (urlsplit(url).hostname or "").lower()
    if host in _SLACK:
        return "slack"
    return "teams" if f".{host}".endswith(_TEAMS) else "json"


def body_of(message: Message, form: Form) -> bytes:
    """The request's body."""
    bodies = {"slack": _slack, "teams": _teams, "json": _json}
    return orjson.dumps(bodies[form](message))


def page_of(console: str | None, pipeline: str, view: str | None, deployment: str | None) -> str | None:
    """The console's page of a view or a pipeline; None where nobody says at which address people reach it."""
    if console is None:
        return None
    path = pipeline_path(pipeline) if view is None else view_path(view)
    return console + path + (f"?of={quote(deployment, safe='')}" if deployment else "")


def over_words(words: str, lasted_s: float) -> str:
    """What is said of an incident's end."""
    return f"over, after {lasting(lasted_s)}: {words}"


# -- forms -------------------------------------------------------------------------------------------------------------


def _slack(message: Message) -> dict[str, Any]:
    lines = [f"*{_escaped(message.title)}*"]
    for line, page in message.lines():
        lines.append(f"• {_escaped(line)}" + (f" <{_escaped(page)}|Open>" if page else ""))
    return {"text": "\n".join(lines)}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(message: Message) -> dict[str, Any]:
    # Runs of text and no TextBlock: that one takes the underscores of names for Markdown.
    body = [_runs([{"type": "TextRun", "text": message.title, "weight": "Bolder"}])]
    for line, page in message.lines():
        runs: list[dict[str, Any]] = [{"type": "TextRun", "text": line}]
        if page:
            runs.append({"type": "TextRun", "text": " Open", "selectAction": {"type": "Action.OpenUrl", "url": page}})
        body.append(_runs(runs))
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _runs(inlines: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": inlines}


def _json(message: Message) -> dict[str, Any]:
    return {
        "deployment": message.deployment,
        "text": message.title,
        "began": list(message.began),
        "over": [*message.over, *message.was],
    }
