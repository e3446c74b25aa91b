"""An operator's levers: the questions, checks and reports of the commands of `headgate cluster`.

None of it prints but the report. The command line imports this room; it imports the clients of controllers and store.
"""
