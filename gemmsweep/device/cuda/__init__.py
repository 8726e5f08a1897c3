"""The only CuPy code: buffers, captured bursts, clock stamps and the cuBLAS reference on an NVIDIA GPU."""
