"""Why a run failed: exits, log lines, findings and timing of an incident → one Verdict (`verdict`)."""
