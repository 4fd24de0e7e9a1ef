"""Parameter server: workers compute gradients, servers hold the weights and apply the optimizer's update.

`build` and `plan` are in `strategy`; which server holds what is in `layout`; the kinds of
messages are in `tags`; what a server computes is in `server_state`.
"""
