"""What runs machine code: the driver, launches and workspaces."""
