"""Judges: which of two answers is better."""
