"""``python -m ksieve`` is the `ksieve` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A broken installation or an early Ctrl-C does not exit with 1, which means "not exact"."""
    try:
        from ksieve.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from ksieve.core.installation import install_command

        what = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"error: ksieve cannot start ({what}); install it again, completely: {install_command()}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
