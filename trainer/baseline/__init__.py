"""What simple features and linear models reach: what a network's score must be held against.

- `features`: age and sex, intensity statistics of the stored volumes, tissue volumes;
- `models`: the linear models, and their predictions of subjects they were not fitted to;
- `scores`: a table of all that by cross-validation.
"""
