"""Which memory a controller has, and whether it may vote with it (docs/decisions/0033).

`words` holds what an operator is told, `census` asks the other controllers who they are, `standing` decides with their
answers, and `recovery` makes a cluster of the one controller that is left. Imports the Raft core, the driver and the
wire; imported by `controller.node`, `controller.service` and the command line.
"""
