"""One value for the job where all nodes have the same, else one for each node: NCCL's settings are never per rank."""

from collections.abc import Iterator, Mapping

from fabricd.model.plan import Setting


def by_node(name: str, values: Mapping[str, str], because: str) -> Iterator[Setting]:
    """Yield a setting whose value may differ by node.

    Args:
        name: of the variable.
        values: by node.
        because: the rule and the fact.
    """
    different = set(values.values())
    if len(different) == 1:
        yield Setting(name=name, value=different.pop(), because=because)
        return
    for node, value in values.items():
        yield Setting(name=name, value=value, scope="node", node=node, because=f"{because}; names differ by node")
