"""Looking at a recorded run again: its tokens, its losses, its episodes."""
