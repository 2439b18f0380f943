"""Engines: the contract, and the one that is built in."""
