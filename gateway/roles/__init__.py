"""The roles that a process of Headgate can have, and what each of them refuses of a configuration.

`checks` is asked by every role before it starts, and by `headgate check-config`, so that the one says what the other
does. It may be imported by the roles' processes and the command line; it imports the configuration, and what reads
files that it names.
"""
