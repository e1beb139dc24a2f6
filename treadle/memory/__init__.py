"""Memory: activations computed again, optimizer state on the host, what a device holds."""
