"""`python -m consumers.cli` is `inbox-fleet`."""

from consumers.cli.group import main

main(prog_name="inbox-fleet")
