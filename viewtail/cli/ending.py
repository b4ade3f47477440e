"""Ends a command: it returns the exit code, and prints one message on stderr for every error."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable

import typer
import typer.exceptions

from viewtail import signals
from viewtail.changes.errors import MisuseError, UnknownNameError, ViewtailError, once, place_of
from viewtail.changes.extras import lacking


def ended(
    call: Callable[[], int], held: list[str] | None = None, kinds: tuple[type[ViewtailError], ...] = (UnknownNameError,)
) -> int:
    """The exit code of a call. `held` takes errors of these kinds, where another deployment may have the answer."""
    try:
        code = call()
        sys.stdout.flush()
        return code
    except ViewtailError as error:
        told = once(error)  # what `run` does by itself, a command that ends does not
        if held is not None and isinstance(error, kinds):
            held.append(told)
        else:
            say(told)
        return error.exit_code
    except typer.exceptions.TyperException as error:
        _say_misuse(error)
        return error.exit_code
    except (BrokenPipeError, SystemExit):
        # The first becomes the second in typer, which also exits when it has told a shell enough.
        _silence_stdout()
        return 0  # the reader had enough
    except (KeyboardInterrupt, typer.Abort):
        return signals.EXIT_STOPPED
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Say what no command expects; returns the exit code."""
    if isinstance(error, ModuleNotFoundError) and (why := lacking(error.name or "")):
        say(why)
        return MisuseError.exit_code
    if isinstance(error, OSError) and _is_of_output(error):
        say(f"the output cannot be written: {error.strerror}")
        _silence_stdout()
    else:
        say(_unexpected(error))
    return 1


def say(message: str) -> None:
    """An error, without secrets."""
    from viewtail.logs import masked

    lines = masked(message).splitlines() or ["failed"]
    print("\n".join(f"viewtail: error: {line}" for line in lines), file=sys.stderr)


def _is_of_output(error: OSError) -> bool:
    """Return True if stdout leads to a full disk or to a device that takes nothing."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG) and error.filename is None


def _say_misuse(error: typer.exceptions.TyperException) -> None:
    """Print what is wrong with the command line, and where its help is."""
    message = error.format_message()
    if not message.strip():
        return  # nothing was given, and the help was printed
    context = getattr(error, "ctx", None)
    command = "viewtail" if context is None else context.command_path
    say(f"{message.rstrip('.')}. See: {command} --help")


def _silence_stdout() -> None:
    """The interpreter flushes stdout once more when it ends, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _unexpected(error: Exception) -> str:
    """Return where a fault of viewtail's own is, without its text, which may hold row values."""
    frames = traceback.extract_tb(error.__traceback__)
    calls = " < ".join(frame.name for frame in reversed(frames[-4:]))
    return f"{type(error).__name__}{place_of(error)} ({calls}): a fault in viewtail; please report this line"
