"""Recipes: the settings of a run, read from YAML and checked before anything runs."""
