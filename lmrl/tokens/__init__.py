"""Text to token ids, segments of action tokens, and batches."""
