"""`python -m gemmsweep`."""

from gemmsweep.cli.main import main

if __name__ == "__main__":
    main()
