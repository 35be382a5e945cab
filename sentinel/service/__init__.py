"""What everything has that runs for long: a lock and an address, its health, settings that change meanwhile."""
