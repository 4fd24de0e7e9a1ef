"""`train.strategy=auto`: the strategy that is predicted to be fastest, chosen when a run starts.

candidates.py has what is tried, choice.py what was found and decided (pure), deciding.py the collective that
plans on all ranks, and watching.py what compares the prediction with the steps that follow.
"""
