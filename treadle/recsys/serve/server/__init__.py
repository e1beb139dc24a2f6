"""A server of recommendations over HTTP."""
