"""Audits of a recorded run: its tokens, its losses, its episodes."""
