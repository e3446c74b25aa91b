"""Authentication, access and limits: passwords, tokens, certificates, rights, and the rates of clients.

`runtime` and `process` import this room, and `config` its settings; it imports the port and the domain.
"""
