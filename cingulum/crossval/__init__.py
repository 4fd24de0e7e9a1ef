"""How `cingulum crossval` trains folds."""
