"""Where trials are kept: a journal in a file, or any database that Optuna can use."""
