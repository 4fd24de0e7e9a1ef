"""The list of jobs: one database for all jobs of a user, kept up to date and repaired."""
