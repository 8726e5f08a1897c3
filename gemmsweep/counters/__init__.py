"""Readings of a device beside its times."""
