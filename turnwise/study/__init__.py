"""Studies: many runs from common starts, some at once. Called again, a study goes on where it was."""
