"""Running machine code: the driver, launches and workspaces."""
