"""What is told of a cluster and of a job: read for `sentinel status`, a controller's pages and its daily summary."""
