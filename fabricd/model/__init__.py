"""What a node, a path and a plan are. Inert, frozen dataclasses: no method does I/O.

Rules for change (the same as for any wire format): a new field has a default, no field changes its type or
meaning, unknown fields are ignored on reading. ``SCHEMA`` rises by one with a dated line in
``fabricd.model.snapshot`` when readers must know.
"""
