"""Evaluation of agents, statistics, and comparison of algorithms."""
