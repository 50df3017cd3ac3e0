"""Trained policies of lmrl, as files: see `lmrl zoo list`."""
