"""The console: pages on which operators see what `viewtail status` knows, and have viewtail's commands run."""
