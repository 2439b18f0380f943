"""How good an agent is, and how sure we are of it: evaluation, statistics, comparison of algorithms."""
