"""Files and locks, configuration, lazy imports, plugins, and processes of one machine or a cluster."""
