"""The sentences that tell an operator of a controller that does not vote; docs/cluster.md has the same."""

_ADVICE = (
    "the cluster's leader adds it again by itself, and where no leader can be elected any more, stop all controllers "
    "and run `headgate controller recover` on the one that knows most"
)
EMPTY = (
    "the directory is empty, but cluster {cluster} is there already: this controller does not vote; " + _ADVICE
)  # fmt: skip
REPLACED = (
    "the cluster knows controller {id} with another directory: this one does not vote; " + _ADVICE
)  # fmt: skip
COPIED = (
    "the directory is a copy or was restored from a backup, so it may be an old one: this controller does not vote "
    "until a leader has added it again, or until all other controllers have answered"
)
MISSING = (
    "a new cluster begins when all of cluster.controllers have been started, and these do not answer: {missing}; to "
    "begin without them, name fewer in cluster.controllers and add the others later by `headgate cluster members add`"
)
FORGOTTEN = (
    "the controllers have forgotten committed metadata, up to entry {index}: nothing of them is believed; start the "
    "controllers that have it"
)
RECOVERED = (
    "the cluster was recovered without this controller: stop this controller, empty its directory and start it again"
)
FORMING = "a new cluster begins with controller {id}, which has not begun it yet"
WAITING = "this controller waits to be added by the leader of the cluster it is to join"
LOST = (
    "controller {id} at {address} does not count: its directory is not the one that the cluster knows, it was emptied "
    "or restored"
)
ANOTHER = "controller {id} is alive at {address} with another directory: two controllers have the same controller.id"
