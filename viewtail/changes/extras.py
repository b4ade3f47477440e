"""What of viewtail is installed on demand: pip install 'viewtail[EXTRA]', as pyproject.toml declares."""

from __future__ import annotations

from importlib.util import find_spec

# By what is imported, the extra that brings it.
EXTRAS = {
    "elasticsearch": "elasticsearch",
    "elastic_transport": "elasticsearch",
    "confluent_kafka": "kafka",
    "starlette": "serve",
    "uvicorn": "serve",
    "httpx": "serve",
    "anyio": "serve",
    "jinja2": "serve",
}


def lacking(module: str) -> str:
    """What to do where a module of an extra is not installed; '' where it is, or is of none."""
    command = how_to_install(module)
    return command and f"the Python package {module.partition('.')[0]} is not installed. Install it: {command}"


def how_to_install(module: str) -> str:
    """The command that installs a module of an extra; '' where it is installed, or is of none."""
    name = module.partition(".")[0]
    return f"pip install 'viewtail[{EXTRAS[name]}]'" if name in EXTRAS and not _is_there(name) else ""


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:  # something in the interpreter keeps it out
        return False
