"""Turnwise rows inside other trainers: one bridge from padded tensors, and one small module for each trainer."""
