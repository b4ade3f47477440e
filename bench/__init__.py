"""Measures viewtail against a floor, bare loops and a peer's bulk helper, as ratios within one run."""
