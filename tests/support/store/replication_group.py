"""A store group of three replicas, as a master sees it."""

from tests.support.store.replication_kit import Following, Leading


def group(*numbers: int, **kinds) -> Leading:
    """Returns a master with replicas that are all in sync."""
    followers = [Following(number, pace=kinds.get("pace")) for number in numbers]
    leading = Leading(followers=followers, **kinds).connect(*numbers)
    return leading.pass_time(400)
