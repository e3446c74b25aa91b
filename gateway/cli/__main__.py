"""`python -m gateway.cli`: the same as `headgate`."""

from gateway.cli import main

main()
