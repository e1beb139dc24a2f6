"""The package as people install it: built, put into empty environments, and used outside of the repository."""
