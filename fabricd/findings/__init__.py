"""What is wrong with nodes, and with a set of them that is to work together: rules over the facts of snapshots.

A rule yields a finding only where facts show it, and names them; where facts are missing it says nothing, and
``probes`` says what could not be checked. There is no table of what a product should have: a device is judged by what
both of its ends could do, by its like on the same node, and by the node's like in the cluster.
"""
