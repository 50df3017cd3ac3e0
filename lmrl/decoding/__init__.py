"""Sampling for many environments at once: slots that keep their key-value cache between turns."""
