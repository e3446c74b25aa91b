"""A store node: one replica of a store group, which follows or is the master, as the controllers say."""
