"""``python -m ksieve`` is the `ksieve` command."""

from ksieve.cli import main

if __name__ == "__main__":
    main()
