"""What becomes of jobs: `fold` for all of them, `of_cluster` where others start and stop them too."""
