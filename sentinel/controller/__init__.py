"""The controller: what it decides of jobs (`jobs/`) and nodes (`nodes/`), what it does (`effects/`), and its daemon."""
