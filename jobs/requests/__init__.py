"""What is asked of jobs: looked up, checked, previewed, submitted. The command line and a service call it.

Nothing here prints: what people should hear goes to a function that the caller gives.
"""
