"""What owners ask, and may ask: caps, policies in words, which job one protects, and whom its mails go to."""
