"""One machine: jobs under supervisors of their own, their processes, and the records in one SQLite file."""
