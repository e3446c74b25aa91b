"""The controllers' interface: the client, its values, commands, and the limits on names.

Everybody may import `client`; the commands are the controllers' own. Imports nothing of the product.
"""
