"""What clients of language models say on the wire: one canonical form, and a reader and a writer for each format."""
