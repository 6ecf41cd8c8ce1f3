"""The command: `tokenmill`, or `python -m tokenmill`."""

import sys

from tokenmill.errors import INTERRUPTED, exit_code_of


def main() -> None:
    """Run the command. Ctrl-C while its modules are loaded ends it without a traceback."""
    try:
        from tokenmill.cli import main as run  # noqa: PLC0415 - loading it takes a third of a second
    except BaseException as error:
        if exit_code_of(error) != INTERRUPTED:
            raise
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
