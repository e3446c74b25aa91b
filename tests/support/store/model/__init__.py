"""A store as plain dictionaries, in the most naive way, and the rig that drives a real store beside it.

Property tests tell the model what the store has acknowledged; the simulation lets it follow the frames of the log.
Everything in `tests` may import it. It imports the store.
"""
