"""Ray (extra `cluster`): `serving`'s application on several machines, and files of lines.

`deployment.py` is an application of Ray Serve, and `files.py` translates files with Ray Data.
"""

from keras_transformer.extras.cluster.deployment import ClusterOptions, build_app

__all__ = ["ClusterOptions", "build_app"]
