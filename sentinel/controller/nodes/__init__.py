"""Which nodes leave service and come back: `fold`, the loop of the leader, and its parts."""
