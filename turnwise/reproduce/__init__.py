"""Claims of papers, put to the test: recipes in `recipes/<paper>/`, thresholds fixed in advance, and a verdict."""
