"""Every metric: declared once, counted, and written as text for a scrape."""
