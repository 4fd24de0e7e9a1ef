"""The service: a page and an API over the user's store of jobs and run folders; `app.py` is where to begin.

It runs as the user, and asks no address outside. TensorFlow is not imported here.
"""
