"""Where a step's data comes from: episodes that are played, demonstrations, files."""
