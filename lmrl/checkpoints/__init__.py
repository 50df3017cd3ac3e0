"""Checkpoints and model folders: writing, reading and exporting them, model cards, and the names of runs and zoo."""
