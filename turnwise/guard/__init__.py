"""Detecting runs that go wrong: bounds, signals, collapse, and the guard that acts on them."""
