"""What is known of one job (`picture`), what to do about it (`policy`), and the incident that this opens."""
