"""Jobs of a cluster and their pods, as plain JSON: what they are, and how they are stopped, changed and started."""
