"""Cross-validation: one run per fold and seed, and what they say together.

stored.py       what lies in its folder, for commands that read it
folds.py        which runs, their configurations, and how far they are
launching.py    trains them: one after the other or side by side, stopped and resumed as one
held_out.py     every scan's held-out prediction, once per seed
figures.py      pooled and per-fold figures with intervals
tables.py       crossval.json, crossval.csv, predictions.csv
"""
