"""Pure tensor functions on packed batches: one idea, one function, its equation and paper in the docstring."""
