"""Make a cohort of synthetic brains, to try everything without images of real people.

`cohort.make_cohort` writes a BIDS folder. The parts, in the order in which a subject is made:

- `template`: the ICBM152 average brain on the cohort's grid, and the regions that age and disease change;
- `people`: who takes part: age, sex, diagnosis, site;
- `anatomy`: how one head differs from the average: size, pose, smooth warps;
- `disease`: how much tissue age and disease have taken, and the displacement that takes it;
- `image`: what the scanner sees: contrast, texture, bias field, Rician noise;
- `files`, `bids`: what is written, atomically and with the same bytes every time;
- `adni`: the same cohort as ADNI's archive would pack it;
- `workers`: subjects spread over processes.
"""
