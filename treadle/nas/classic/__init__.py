"""Search over trials of networks, each trained on its own by a classic trainer."""
