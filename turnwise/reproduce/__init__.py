"""Tests of papers' claims: recipes in `recipes/<paper>/`, thresholds fixed in advance, and a verdict."""
