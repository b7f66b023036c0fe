"""`python -m steelyard`: the command `steelyard`, also where its script is not on the path."""

from steelyard.cli import main

if __name__ == "__main__":
    main()
