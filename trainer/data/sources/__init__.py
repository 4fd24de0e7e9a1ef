"""List the images of a cohort, with their subjects and labels."""
