"""A gateway's own figures: metrics, flow by protocol, the status document, the banner.

The rooms above import this one; it imports the health of groups from the controllers, and nothing of the gateway's
work.
"""
