"""gemmsweep: race one tile parameter of a GEMM kernel at a time, and write every run down."""

__version__ = "0.1.0"
