"""The configuration: every section as one frozen value, and the node that it describes.

The runtime, the processes and the command line import this room; it imports the settings of the rooms below.
"""
