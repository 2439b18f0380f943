"""Policies: language models, feature networks, critics, and how chat becomes tokens."""
