"""Sources of a step's data: played episodes, demonstrations, files."""
