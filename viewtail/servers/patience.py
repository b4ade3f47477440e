"""Has one table of how long a server's answer is waited for, by who waits.

A worker waits long, since a server that is busy will answer. A person, a request and a probe are told soon, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_LEAST_S = 1.0  # a server that is well answers in that time


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The patience of one who asks servers."""

    connect_s: float  # for a connection
    login_s: float  # for each answer of a login, which every server gives at once
    answer_s: float  # for each answer to a question
    # By HOST:PORT, why those that let nobody in are asked no more; None: they are asked each time.
    silent: dict[str, str] | None = None

    def within(self, seconds: float) -> Patience:
        """Return the patience of one who waits no longer than so many seconds in all."""
        most_s = max(seconds, _LEAST_S)
        return replace(
            self,
            connect_s=min(self.connect_s, most_s),
            login_s=min(self.login_s, most_s),
            answer_s=min(self.answer_s, most_s),
        )

    def once(self) -> Patience:
        """Return that of a command that ends soon: a server that let nobody in is not waited for a second time."""
        return replace(self, silent={})


WORK = Patience(connect_s=10.0, login_s=60.0, answer_s=60.0)
# Of a person, or a request: with what is done beside, 10 s for each server.
QUESTION = Patience(connect_s=3.0, login_s=4.0, answer_s=8.0)
# Of a command whose statements may take long: only a server that lets nobody in is given up soon.
COMMAND = Patience(connect_s=QUESTION.connect_s, login_s=QUESTION.login_s, answer_s=WORK.answer_s)
PROBE = Patience(connect_s=1.0, login_s=1.5, answer_s=1.5)
