"""What goes wrong with runs: bounds, signals, collapse, and what the guard does about it."""
