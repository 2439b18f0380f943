"""Trained models for a model hub: which files of a run go there, and the model card that describes them."""
