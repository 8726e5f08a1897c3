"""Kernel templates: their headers, their expressions, and what one config of a template becomes."""
