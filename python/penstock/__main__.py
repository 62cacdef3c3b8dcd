"""Lets `python -m penstock` do what the `penstock` command does."""

from penstock.cli import main

if __name__ == "__main__":
    main()
