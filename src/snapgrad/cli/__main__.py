"""`python -m snapgrad.cli`."""

from . import main

main()
