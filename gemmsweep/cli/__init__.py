"""Commands: parse, call, print. One module per command; no SQL, no CuPy."""
