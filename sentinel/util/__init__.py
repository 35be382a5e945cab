"""What knows nothing of jobs and nodes: bounded children, clocks, the log, documents, work cut small or in order."""
