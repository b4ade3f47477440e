"""The command line."""

from __future__ import annotations

import sys

from changes.errors import ViewtailError


def main() -> None:
    """Interim: `run` only."""
    from viewtail.commands.run import run

    try:
        sys.exit(run(None))
    except ViewtailError as error:
        print(f"viewtail: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
