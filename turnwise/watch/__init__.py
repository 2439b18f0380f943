"""A live page over run folders: it reads what runs append and writes nothing. Nothing here imports torch."""

from turnwise.watch.live_view import LiveView
from turnwise.watch.watch_server import WatchServer

__all__ = ["LiveView", "WatchServer"]
