"""What models of one family share."""
