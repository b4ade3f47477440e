"""Servers that stack/ fetches, or has fetched before: started for one demo, and what to do where there are none."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from viewtail.changes.extras import how_to_install
from viewtail.demo import servers
from viewtail.demo.given import CLIENTS
from viewtail.demo.place import TITLES, Names, Place
from viewtail.demo.process import DemoError, environment
from viewtail.demo.screen import line, short
from viewtail.settings import CONFIG_FILE, ConsoleSettings, Metrics

NAMES = Names(rows="geo", own="viewtail", prefix="")
_SECTIONS = {"mysql": "source", "redis": "redis", "elasticsearch": "elasticsearch", "kafka": "kafka"}
_INSTEAD = """
The demo can be played on servers of yours: a MySQL or MariaDB that writes a row binlog, and the other stores where you
have them. It makes the databases viewtail_demo and viewtail_demo_views there, and removes them at the end:
  export VIEWTAIL_SOURCE__URL=mysql://USER:PASSWORD@HOST VIEWTAIL_REDIS__URL=redis://HOST
  viewtail demo
A container engine has some in a minute:
  viewtail demo --print-compose > docker-compose.yml
  docker compose up --wait mysql redis elasticsearch kafka
  export VIEWTAIL_SOURCE__URL=mysql://root:viewtail@127.0.0.1 VIEWTAIL_REDIS__URL=redis://127.0.0.1
  export VIEWTAIL_ELASTICSEARCH__URL=http://127.0.0.1:9200 VIEWTAIL_KAFKA__URL=kafka://127.0.0.1:9092
  viewtail demo"""


def place(folder: Path, without: frozenset[str], stopping: ExitStack | None) -> Place:
    """On servers that are started now; `stopping` stops them, and without it they outlive the demo.

    Raises DemoError where no MySQL can be had.
    """
    lacking = {store: why for store in CLIENTS if store not in without and (why := how_to_install(CLIENTS[store]))}
    wanted = [store for store in TITLES if store not in {*without, *lacking}]
    addresses, failed = _started(wanted, folder, stopping)
    (folder / CONFIG_FILE).write_text(_settings(addresses))
    return Place(
        is_given=False,
        folder=folder,
        cwd=folder,
        config=None,
        environ=environment({"VIEWTAIL_CONFIG": str(folder / CONFIG_FILE)}),
        module="views",
        names=NAMES,
        stores=tuple(store for store in wanted if store in addresses),
        lacking=lacking | failed,
    )


def _started(wanted: list[str], folder: Path, stopping: ExitStack | None) -> tuple[dict[str, str], dict[str, str]]:
    """The addresses of the servers that answer, and why the others do not, by store."""
    line(f"from Debian packages and Maven, kept in {short(servers.cache())}", "dim")
    addresses, failed = dict[str, str](), dict[str, str]()
    for one in servers.start_all(dict(zip(wanted, wanted, strict=True)), folder, stopping):
        if one.server is not None:
            addresses[one.name] = one.server.url
            line(f"{TITLES[one.name]:<15} {one.server.url:<36} up in {one.seconds:.1f} s")
        elif one.name == "mysql":
            raise DemoError(f"no MySQL can be fetched here. {one.reason}\n{_INSTEAD}")
        else:
            failed[one.name] = str(one.reason)
    return addresses, failed


def _settings(addresses: dict[str, str]) -> str:
    """The text of viewtail.toml."""
    groups = {_SECTIONS[store]: {"url": f'"{url}"'} for store, url in addresses.items()}
    groups["cleaner"] = {"share": "0"}  # it might mend the damage before `verify --repair` shows it
    groups["metrics"] = {"port": str(servers.port_near(Metrics().port))}
    groups["console"] = {"port": str(servers.port_near(ConsoleSettings().port))}
    return "\n".join(
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in settings.items()) + "\n"
        for group, settings in groups.items()
    )


def compose() -> str:
    """The text of a docker-compose.yml with such servers."""
    return servers.compose_file().read_text()
