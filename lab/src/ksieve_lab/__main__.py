"""``python -m ksieve_lab`` is the `ksieve` command with the laboratory's commands, installed or not."""

from ksieve_lab.cli.app import main

if __name__ == "__main__":
    main()
