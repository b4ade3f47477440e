"""Does what operators ask for: each module reads like its runbook."""
