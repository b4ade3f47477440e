"""The ASGI application of the console: addresses, who may ask, and pages as HTML or as a stream of their live part.

    GET  /[?page=N&find=WORD], /record, /view/STORE/NAME[/rows|/why|/letters|/preview], /pipeline/NAME, /job/N
    GET  the same path and /events: the live part of a page again, whenever it changed (server-sent events)
    GET  /do/ACTION?name=...: what a command will do;  POST /do/ACTION: do it
    GET, POST /sign-in, POST /sign-out, POST /job/N/stop
    GET  /static/...

No part of a request is logged.
"""

from __future__ import annotations

import asyncio
import secrets
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import orjson
import structlog
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from viewtail.changes.console_paths import name_in_path
from viewtail.changes.errors import MisuseError, StoreUnavailableError, UnknownNameError, ViewtailError, once
from viewtail.console import guard, pages
from viewtail.console.actions import BY_ID
from viewtail.console.jobs import Commands, Job
from viewtail.console.looking import Fleet
from viewtail.console.pages import Pages, Shown
from viewtail.settings import ConsoleSettings

_log = structlog.get_logger("viewtail.console")

LOOK_EVERY_S = 1.0  # of a page that is looked at
SAY_EVERY_S = 15.0  # on a stream where nothing changes, so that a proxy keeps it
MOST_STREAMS = 64
MOST_QUESTIONS = 8  # of which each takes a thread; the other threads are for pages of what is known
MOST_WAITING = 32  # behind them
MOST_FORM_BYTES = 64 << 10
WRONG_TOKEN_S = 0.5  # so long an answer to a wrong token takes
_STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}

Make = Callable[[Request], Shown]
Made = Callable[[Request], Awaitable[Shown]]


class _Forbidden(MisuseError):
    """What nobody may do who is not signed in, or who does not ask from a page of the console."""


class _Stream(StreamingResponse):
    """Counts itself from the moment on at which it was let in."""

    def __init__(self, content: AsyncIterator[bytes], count: Callable[[int], None]) -> None:
        super().__init__(content, 200, {"X-Accel-Buffering": "no"}, "text/event-stream")
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._count(1)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._count(-1)


class Console:
    """The console of a fleet. `application` serves it.

    Args:
        settings: its token opens sessions; its host and url say which names it answers to.
    """

    def __init__(self, fleet: Fleet, commands: Commands, settings: ConsoleSettings) -> None:
        self._pages, self._commands = Pages(fleet, commands), commands
        token = settings.token
        self._sessions = guard.Sessions(None if token is None else token.get_secret_value())
        self._names = guard.names(settings.host, settings.url)
        self._is_secure = (settings.url or "").startswith("https:")
        self.is_stopping: Callable[[], bool] = lambda: False  # streams end then
        self._streams = 0
        self._wrong = guard.WrongTokens(_say_wrong, lambda s, call: asyncio.get_running_loop().call_later(s, call))
        self._questions, self._waiting = asyncio.Semaphore(MOST_QUESTIONS), 0
        self._static = {name: files("viewtail.console").joinpath("static", name).read_bytes() for name in _STATIC}
        self.application = Starlette(routes=self._routes())

    def _routes(self) -> list[BaseRoute]:
        view = "/view/{store}/{name}"
        live: list[tuple[str, Make]] = [
            ("/", lambda _: self._pages.overview()),
            ("/pipeline/{name}", lambda request: self._pages.pipeline(_of(request), _name(request))),
            ("/job/{number}", lambda request: self._pages.job(self._job(request))),
            (view, lambda request: self._pages.view(_of(request), _view(request))),
        ]
        record = partial(self._asked, lambda request: self._pages.record(is_whole="all" in request.query_params))
        questions: list[tuple[str, Make]] = [
            (f"{view}/rows", self._rows),
            (f"{view}/why", self._why),
            (f"{view}/letters", lambda request: self._pages.letters(_of(request), _view(request))),
            (f"{view}/preview", self._preview),
            ("/do/{action}", self._action),
        ]
        routes: list[BaseRoute] = [
            self._route("/static/{name}", self._static_file),
            self._route("/do/{action}", self._do, "POST"),
            self._route("/sign-in", self._sign_in, "POST"),
            self._route("/sign-out", self._sign_out, "POST"),
            self._route("/job/{number}/stop", self._stop, "POST"),
            self._route("/sign-in", self._to_sign_in),
        ]
        for path, make in live:
            routes += self._live_routes(path, partial(self._looked, make))
        routes += self._live_routes("/record", record)
        routes += [self._route(path, partial(self._page, partial(self._asked, make))) for path, make in questions]
        return [*routes, self._route("/{path:path}", self._nothing)]

    def _route(self, path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        return Route(path, partial(self._guarded, answer), methods=[method])

    def _live_routes(self, path: str, made: Made) -> list[BaseRoute]:
        return [
            self._route(f"{path.rstrip('/')}/events", partial(self._events, made)),
            self._route(path, partial(self._page, made)),
        ]

    async def _guarded(self, answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        """Answer, with the headers of every answer; what goes wrong is a page, too."""
        if not guard.is_named(request.headers.get("host", ""), self._names):
            known = ", ".join(sorted(self._names))
            message = f"The console answers to {known}. Another address of it is a setting: VIEWTAIL_CONSOLE__URL\n"
            return Response(message, 421, guard.HEADERS, "text/plain")
        try:
            response = await answer(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except UnknownNameError as error:
            response = self._html(request, _trouble("Not found", str(error), 404))
        except MisuseError as error:
            status = 403 if isinstance(error, _Forbidden) else 400
            response = self._html(request, _trouble("That cannot be done", str(error), status))
        except ViewtailError as error:
            response = self._html(request, _trouble("A server does not answer", once(error), 503))
        except Exception as error:
            response = self._html(request, _fault(request, error))
        response.headers.update(guard.HEADERS)
        return response

    # -- pages ---------------------------------------------------------------------------------------------------

    async def _page(self, made: Made, request: Request) -> Response:
        """Written by a thread, too: views.py is read where a declaration is shown, and may take its time."""
        page = await made(request)
        return HTMLResponse(await run_in_threadpool(self._rendered, request, page), page.status)

    async def _looked(self, make: Make, request: Request) -> Shown:
        return await run_in_threadpool(make, request)

    async def _asked(self, make: Make, request: Request) -> Shown:
        """A page for which servers, or a command, are asked: few at once, so that the other pages have threads."""
        if self._waiting >= MOST_WAITING:
            raise StoreUnavailableError("too many questions wait for an answer already. Load the page again")
        self._waiting += 1
        try:
            await self._questions.acquire()
        finally:
            self._waiting -= 1
        try:
            return await run_in_threadpool(make, request)
        finally:
            self._questions.release()

    def _html(self, request: Request, page: Shown) -> HTMLResponse:
        return HTMLResponse(self._rendered(request, page), page.status)

    def _rendered(self, request: Request, page: Shown) -> str:
        return pages.environment().get_template(page.template).render(self._given(request, page))

    def _given(self, request: Request, page: Shown) -> dict[str, Any]:
        session = self._session(request)
        return {
            **page.given,
            "title": page.title,
            "is_live": page.is_live,
            "events": _with_query(f"{_path(request).rstrip('/')}/events", request),
            "page": _part(request),
            "find": request.query_params.get("find", "").strip(),
            "asked": dict(request.query_params),
            "path": _with_query(_path(request), request),
            "session": session,
            "form_key": self._sessions.form_key(session) if session is not None else "",
            "can_sign_in": self._sessions.can_act,
            "now": pages.clock(),
        }

    async def _events(self, made: Made, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._streams >= MOST_STREAMS:
            message = f"{MOST_STREAMS} pages of the console are live, and it keeps no more so. Close some of them\n"
            return Response(message, 503, media_type="text/plain")
        return _Stream(self._stream(made, request), self._count_stream)

    def _count_stream(self, by: int) -> None:
        self._streams += by

    async def _stream(self, made: Made, request: Request) -> AsyncIterator[bytes]:
        """The live part of a page, again whenever it is another one, until nobody listens any more."""
        last, silent_s = "", 0.0
        while not self.is_stopping():
            live = await self._live(made, request)
            if live != last or silent_s >= SAY_EVERY_S:
                yield f"data: {orjson.dumps(live if live != last else None).decode()}\n\n".encode()
                last, silent_s = live, 0.0
            await asyncio.sleep(LOOK_EVERY_S)
            silent_s += LOOK_EVERY_S
            if await request.is_disconnected():
                return

    async def _live(self, made: Made, request: Request) -> str:
        try:
            page = await made(request)
        except ViewtailError as error:
            page = _trouble("Nothing newer is known", once(error), 503)
        except Exception as error:
            page = _fault(request, error)
        return await run_in_threadpool(self._live_part, request, page)

    def _live_part(self, request: Request, page: Shown) -> str:
        template = pages.environment().get_template(page.template)
        return "".join(template.blocks["live"](template.new_context(self._given(request, page))))

    def _rows(self, request: Request) -> Shown:
        count = _number(request, "count", pages.ROWS, pages.MOST_ROWS)
        return self._pages.rows(_of(request), _view(request), count, request.query_params.get("source", ""))

    def _why(self, request: Request) -> Shown:
        given = request.query_params
        return self._pages.why(_of(request), _view(request), given.get("key", ""), given.get("source", ""))

    def _preview(self, request: Request) -> Shown:
        given = request.query_params
        return self._pages.preview(
            _of(request),
            _view(request),
            _number(request, "sample", pages.SAMPLE, pages.MOST_SAMPLE),
            given.get("source", ""),
            is_asked="sample" in given,
        )

    def _action(self, request: Request) -> Shown:
        given = dict(request.query_params)
        can_act = self._session(request) is not None
        return self._pages.action(_action(request), _of(request), given.get("name", ""), given, can_act=can_act)

    async def _to_sign_in(self, request: Request) -> Response:
        return self._html(request, self._sign_in_page(request.query_params.get("to", "/")))

    def _sign_in_page(self, to: str, error: str = "", status: int = 200) -> Shown:
        given = {"error": error, "to": _own_path(to)}
        return Shown(template="sign_in.html", title="Sign in", given=given, status=status)

    async def _static_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return await self._nothing(request)
        return Response(self._static[name], media_type=_STATIC[name])

    async def _nothing(self, request: Request) -> Response:
        raise UnknownNameError("there is no such page")

    # -- what is done --------------------------------------------------------------------------------------------

    async def _do(self, request: Request) -> Response:
        session, form = await self._signed_form(request)
        action, of, name = _action(request), form.get("of", ""), form.get("name", "")
        # Asked for the shard, and refused where no such view or pipeline is there; no trial is run.
        page = await run_in_threadpool(self._pages.action, action, of, name, form, can_act=False)
        job = self._commands.begin(action.words(name, form), operator=session.name, shard=page.given["shard"])
        return RedirectResponse(f"/job/{job.id}", 303)

    async def _stop(self, request: Request) -> Response:
        await self._signed_form(request)
        job = self._job(request)
        self._commands.stop(job)
        return RedirectResponse(f"/job/{job.id}", 303)

    async def _sign_in(self, request: Request) -> Response:
        form = await _form(request)
        if why := guard.why_not_own(request.headers):
            raise _Forbidden(f"{why}. Nothing was done")
        name, to = form.get("name", "").strip(), form.get("to", "/")
        if not 1 <= len(name) <= guard.MOST_NAME or not name.isprintable():
            error = f"Give your name, at most {guard.MOST_NAME} characters: the record shows it"
            return self._html(request, self._sign_in_page(to, error, 400))
        await asyncio.sleep(self._wrong.pause_s)
        session = self._sessions.open(form.get("token", ""), name)
        if session is None:
            self._wrong.note(request.client.host if request.client is not None else "?")
            await asyncio.sleep(WRONG_TOKEN_S + secrets.randbelow(100) / 1000)
            return self._html(request, self._sign_in_page(to, "The token is not that of the setting", 403))
        response = RedirectResponse(_own_path(to), 303)
        response.set_cookie(
            guard.COOKIE,
            session.cookie,
            max_age=guard.LASTS_S,
            httponly=True,
            samesite="lax",
            secure=self._is_secure,
        )
        return response

    async def _sign_out(self, request: Request) -> Response:
        await self._signed_form(request)
        response = RedirectResponse("/", 303)
        response.delete_cookie(guard.COOKIE)
        return response

    def _session(self, request: Request) -> guard.Session | None:
        return self._sessions.of(request.cookies.get(guard.COOKIE))

    async def _signed_form(self, request: Request) -> tuple[guard.Session, Mapping[str, str]]:
        """The form of an operator's own page. Raises MisuseError for any other."""
        form = await _form(request)
        session = self._session(request)
        if session is None:
            raise _Forbidden("nobody is signed in here, or no more. Nothing was done. Sign in, then do it again")
        why = guard.why_not_own(request.headers)
        if why is not None or not self._sessions.is_form_key(session, form.get("form_key", "")):
            raise _Forbidden(f"{why or 'the form is not of this session'}. Nothing was done. Load the page again")
        return session, form

    def _job(self, request: Request) -> Job:
        number = request.path_params["number"]
        job = self._commands.job(int(number)) if _is_number(number) else None
        if job is None:
            raise UnknownNameError("the console has no such command any more. The record has what it did")
        return job


def _say_wrong(count: int, peers: Sequence[str]) -> None:
    mend = "sign in with console.token of the settings; if nobody did, find out who asks from there"
    _log.warning("wrong tokens", count=count, addresses=list(peers), mend=mend)


def _trouble(title: str, error: str, status: int) -> Shown:
    return Shown(template="trouble.html", title=title, given={"error": error}, status=status)


def _fault(request: Request, error: Exception) -> Shown:
    """What no page expects: where it came from is logged, and not what the error says, which may have a row's value."""
    where = traceback.format_list(traceback.extract_tb(error.__traceback__))
    page = request.scope["path"].split("/")[1]
    _log.error("a page failed", page=page, error=type(error).__name__, at="".join(where))
    what = f"a fault of viewtail, which its log tells more of ({type(error).__name__})"
    return _trouble("The page failed", what, 500)


def _path(request: Request) -> str:
    """As it stands in an address; `request.url.path` ends where a name has a question mark."""
    return quote(request.scope["path"])


def _with_query(path: str, request: Request) -> str:
    return f"{path}?{request.url.query}" if request.url.query else path


def _of(request: Request) -> str:
    return request.query_params.get("of", "")


def _name(request: Request) -> str:
    return name_in_path(request.path_params["name"])


def _view(request: Request) -> str:
    return f"{name_in_path(request.path_params['store'])}:{_name(request)}"


def _action(request: Request) -> Any:
    found = BY_ID.get(request.path_params["action"])
    if found is None:
        raise UnknownNameError("there is no such action")
    return found


def _is_number(given: str) -> bool:
    return given.isascii() and given.isdigit() and len(given) < 10


def _number(request: Request, name: str, default: int, most: int) -> int:
    """Raise MisuseError."""
    given = request.query_params.get(name, "") or str(default)
    if not _is_number(given) or not 1 <= int(given) <= most:
        raise MisuseError(f"{name}: a whole number from 1 to {most:,}")
    return int(given)


def _part(request: Request) -> int:
    """Which part of a long table is asked for; of one that is none, the nearest is shown."""
    given = request.query_params.get("page", "")
    return int(given) if _is_number(given) else 1


def _own_path(given: str) -> str:
    """A path of the console itself, for a redirection."""
    try:
        parts = urlsplit(given)
    except ValueError:
        return "/"
    is_own = not parts.scheme and not parts.netloc and given.startswith("/") and not given.startswith(("//", "/\\"))
    return given if is_own and given.isprintable() else "/"


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form, each once. Raises MisuseError for another body."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise MisuseError("a form is expected")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_FORM_BYTES:
            raise MisuseError("the form is too large")
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise MisuseError("the form cannot be read") from None
