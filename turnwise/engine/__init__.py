"""Engines: the contract and the built-in engine."""
