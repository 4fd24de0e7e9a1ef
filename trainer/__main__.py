"""`python -m trainer` is `cingulum`: for processes that we start with our own Python."""

from trainer.cli import main

main()
