"""A rank that asks where its bytes went: prints rank, verdict and figures as one line of JSON."""

import json
import sys

from fabric_client import create_communicator


def main() -> None:
    """Verify with so many bytes as the first argument says."""
    with create_communicator() as comm:
        found = comm.verify(int(sys.argv[1]))
        print(json.dumps({"rank": comm.rank, "verdict": found.verdict, "told": str(found)}))


if __name__ == "__main__":
    main()
