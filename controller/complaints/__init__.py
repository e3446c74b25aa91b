"""Complaints: who cannot reach a master that the controllers hear, and when such a master is replaced.

`messages` holds what travels, `ledger` what is kept of it and for how long, `policy` the rules. Nothing here does input
or output or looks at a clock. Imported by the rest of `controller`, and by `store` for the messages alone; imports
`controller.api.client`.
"""
