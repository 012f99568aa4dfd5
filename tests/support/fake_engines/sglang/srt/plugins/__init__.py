"""A loader of plugins: calls every function of the group."""

from importlib.metadata import entry_points


def load_plugins():
    for plugin in entry_points(group="sglang.srt.plugins"):
        plugin.load()()
