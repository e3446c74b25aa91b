"""The knowledge that the controllers' leader has from heartbeats, and its rules for electing masters.

`registry` keeps what is heard, `elections` and `admission` are the policy, `serving` and `health` say how a group is.
No input or output. The rooms above import this one, and gateways `registry` and `health`; it imports the metadata.
"""
