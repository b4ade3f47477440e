"""What `viewtail check` says of the webhook, and the message that it sends to try it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from viewtail.changes.findings import Finding, fail, ok, warn
from viewtail.notifying.messages import Message, body_of, form_of
from viewtail.notifying.webhook import WebhookError, post
from viewtail.settings import NotifySettings

_WHERE, _WHAT = "notify", "webhook"
_LOCAL = ("127.0.0.1", "::1", "localhost")


def checks(settings: NotifySettings) -> Iterator[Finding]:
    """Judge the address's form; nothing is sent."""
    url = settings.address
    if url is None:
        return
    form, parts = form_of(url, settings.format), urlsplit(url)
    if form == "slack" and (parts.hostname or "").startswith("hooks.slack") and not _is_of_slack(parts.path):
        seen = "an address at hooks.slack.com that is not /services/T.../B.../..."
        yield fail(_WHERE, _WHAT, seen, "Slack takes no message there", "copy the webhook's address from the Slack app")
    elif parts.scheme == "http" and parts.hostname not in _LOCAL:
        why = "whoever reads the network may write to its readers, too"
        yield warn(_WHERE, _WHAT, "http://, without TLS", why, "an https:// address")
    else:
        yield ok(_WHERE, _WHAT, f"messages in the form {form}; viewtail check --notify sends one")


def _is_of_slack(path: str) -> bool:
    words = path.strip("/").split("/")
    return words[0] in ("services", "triggers", "workflows") and len(words) >= 4


def tried(settings: NotifySettings) -> Finding:
    """Send a message, and say what came of it."""
    url = settings.address
    if url is None:
        mend = "url under [notify], or VIEWTAIL_NOTIFY__URL"
        return fail(_WHERE, "message", "no webhook is set", "nobody is told of incidents", mend)
    form = form_of(url, settings.format)
    try:
        post(url, body_of(Message(deployment="a try", note="this is a message to try the webhook"), form))
    except WebhookError as error:
        mend = "the address, or the webhook's own settings; format under [notify] where it takes another form"
        return fail(_WHERE, "message", f"not taken: {error}", "nobody is told of incidents", mend)
    return ok(_WHERE, "message", f"taken, in the form {form}")
