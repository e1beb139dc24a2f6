"""One trial: its work, what judges it, what it reports, and when it is stopped early."""
