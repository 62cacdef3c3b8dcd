"""Entry point of `python -m penstock`. Runs the `penstock` command."""

from penstock.cli import main

if __name__ == "__main__":
    main()
