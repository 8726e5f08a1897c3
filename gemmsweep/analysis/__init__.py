"""Arithmetic about kernels: what they occupy, what bounds them, and why a step helped."""
