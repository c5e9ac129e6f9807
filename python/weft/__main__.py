"""Entry point of `python -m weft`."""

from weft.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
