"""Parts of `store.cluster`: the groups, and the calls that are spread over them."""
