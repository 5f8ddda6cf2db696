"""Helpers to write an example: a trace of a few events, and the one that the rule decides."""

from __future__ import annotations

from tests.classify.conftest import ENGINE

DEEPEP = "void deep_ep::intranode::dispatch<8>(int4*)"
COMBINE = "void deep_ep::intranode::combine<8>(int4*)"
D2H, H2D = "DtoH (Device -> Pinned)", "HtoD (Pinned -> Device)"
LARGE = 1 << 20
EXAMPLES = {}


def example(rule):
    """Mark a function that writes a trace and returns the id of the event that *rule* decides."""

    def mark(write):
        EXAMPLES[rule] = write
        return write

    return mark


def noted(rule, annotation, kernel="k", **more):
    """One kernel inside one annotation."""

    def write(p):
        p.note(annotation, 0, 10)
        return p.kernel(kernel, 1, **more)

    EXAMPLES[rule] = write


def called(rule, collective, *, note=None, op=None, node=None, trained=True, **more):
    """One collective, perhaps inside an annotation, an op or a node."""

    def write(p):
        if trained:
            p.trained()
        if note:
            p.note(note, 0, 10)
        if op:
            p.op(op, 0, 10)
        if node:
            p.node(node, 0, 10, 5)
        return p.nccl(collective, 1, tid=ENGINE if node else 1, **more)

    EXAMPLES[rule] = write


def inside(rule, node, kernel="k", op=None, deferred=False, **more):
    """One kernel inside one autograd node."""

    def write(p):
        if deferred:
            p.deferred()
        p.node(node, 0, 10, 5)
        if op:
            p.op(op, 0.5, 9, tid=ENGINE)
        return p.kernel(kernel, 1, tid=ENGINE, **more)

    EXAMPLES[rule] = write


def named(rule, kernel):
    """One kernel of this name, in a trace that holds training elsewhere."""
    EXAMPLES[rule] = lambda p: p.trained().kernel(kernel, 1)
