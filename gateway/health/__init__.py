"""What clients would get: the health of store groups, put together from what is known of them.

`groups` decides, without input or output; `watch` asks the controllers for what only they hear; `figures` are metrics.
Whatever says something of a cluster may import this room: a proxy's `/readyz` and `/status`, `headgate cluster status`.
It imports the controllers' client alone.
"""
