"""``python -m ksieve`` is the `ksieve` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a broken installation and an early Ctrl-C do not exit with 1, which means "refuted"."""
    try:
        from ksieve.lab.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        remedy = "install it and what it needs again: pip install --force-reinstall ksieve"
        sys.stderr.write(f"error: ksieve cannot start ({what}); {remedy}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
