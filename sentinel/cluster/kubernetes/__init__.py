"""A Kubernetes cluster as the controller sees it and writes to it. Used by `sentinel controller` alone."""
