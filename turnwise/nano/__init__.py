"""The nano model: a few million parameters that read and copy well, and search no better than their demonstrator."""
