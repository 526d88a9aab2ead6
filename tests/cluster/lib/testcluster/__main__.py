"""`python -m testcluster` builds what is missing, so that the tests after it start at once; with `--nodes` also what an
office of real nodes runs, where there can be one."""

from __future__ import annotations

import sys

from testcluster import binaries, office


def main() -> int:
    """Build the control plane and Helm, and the nodes' programs when they are asked for; returns the exit code."""
    with_nodes = "--nodes" in sys.argv[1:]
    reason = office.impossible() if with_nodes else ""
    if reason:
        sys.stdout.write(f"no office here, and nothing to build: {reason}\n")
        return 0
    nodes = (binaries.NODE, binaries.COREDNS, binaries.KUBE_ROUTER) if with_nodes else ()
    try:
        for wanted in (binaries.CONTROL_PLANE, binaries.HELM, binaries.PROMETHEUS, *nodes):
            todo = binaries.missing(wanted)
            if todo:
                sys.stdout.write(f"building {', '.join(todo)} from Go modules, once (minutes) ...\n")
                sys.stdout.flush()
            sys.stdout.write(f"{wanted.name}: {binaries.ensure(wanted)}\n")
    except (binaries.GoIsMissing, binaries.BuildFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
