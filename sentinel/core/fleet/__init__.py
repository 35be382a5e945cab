"""Whole nodes: which leave service, what brakes that, what is known of silent ones, and when they come back."""
