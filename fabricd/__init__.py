"""fabricd: discovers how a cluster's GPUs are wired and answers which path is best.

Stages form one arrow, and none reaches back::

    probe -> model -> graph -> paths -> plan -> api -> (HTTP) -> client
"""

__version__ = "0.1.0"
