"""The games and the episodes as other libraries want them: `trl` (environments, prompts) and `datasets` (episodes)."""
