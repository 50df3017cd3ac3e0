"""Hyperparameter search over run files, scored by interactive evaluation."""
