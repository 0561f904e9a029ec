"""A rank that asks where its bytes went: prints rank, verdict and figures as one line of JSON."""

import json
import os
import sys

from fabric_client import create_communicator


def main() -> None:
    """Verify with so many bytes as the first argument says, on the engine that the variable ENGINE names."""
    with create_communicator(engine=os.environ.get("ENGINE")) as comm:
        found = comm.verify(int(sys.argv[1]))
        print(json.dumps({"rank": comm.rank, "verdict": found.verdict, "told": str(found)}))


if __name__ == "__main__":
    main()
