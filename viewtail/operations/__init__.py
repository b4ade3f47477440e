"""What operators do: each module reads like its runbook."""
