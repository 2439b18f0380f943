"""Studies: many runs from common starts, several in parallel. Calling a study again resumes it."""
