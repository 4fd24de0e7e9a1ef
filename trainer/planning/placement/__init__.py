"""Which rank holds which box of which tensor, and what must move so that each can compute its part. Pure.

`boxes` are ranges on each axis; `windows` say which part of an input a part of an output needs; `layouts`
say who holds what; `exchanges` lead from one layout to another. Nothing here knows TensorFlow or MPI.
"""
