"""Trains the user's own program through an endpoint: an HTTP server for its calls, and the environment that runs it."""
