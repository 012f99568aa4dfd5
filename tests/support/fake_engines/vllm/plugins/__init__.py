"""A loader of plugins: calls every function of the group, and lets an exception through."""

from importlib.metadata import entry_points


def load_general_plugins():
    for plugin in entry_points(group="vllm.general_plugins"):
        plugin.load()()
