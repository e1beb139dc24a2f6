"""How the pages in `docs/` become a site: `make docs`."""
