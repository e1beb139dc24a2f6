"""Layers as stages on different ranks."""
