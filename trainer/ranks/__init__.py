"""The processes of a run: who they are, what they send each other, and whether they still answer."""
