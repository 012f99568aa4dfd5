"""Launch shapes measured on the user's GPU: `ksieve tune`."""
