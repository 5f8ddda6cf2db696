"""Part of the model that an event belongs to: attention, mlp, norm and so on; null where nothing tells.

Evidence is tried in this order: calls of ``nn.Module`` around the launch; annotations; names of operators, of those
that inductor fused, and of kernels; the shapes of products, which repeat from layer to layer (``layer_products``); the
one product between two events of a known module. A backward event belongs to the module of its forward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tracekit._util.arrays import Bools, Ints, find_sorted
from tracekit._util.categories import CategoryColumn
from tracekit.classify.evidence import Evidence
from tracekit.classify.layer_products import Products
from tracekit.classify.matmul import MATMUL_KERNELS, MATMUL_OPS
from tracekit.classify.model_position import BY_MODULE_STACK, BY_NAME
from tracekit.classify.row_order import FirstEvidence, agreed_values, nearest_at_or_after, nearest_at_or_before
from tracekit.classify.rule_matching import Decisions, match_kinds
from tracekit.classify.rules import NamedKind, RuleBook, builtin_rules
from tracekit.schema import PATH_SEPARATOR

_FUSED_KERNEL = re.compile(r"^triton_(poi|red|per|tem|for|mix|spl)_fused_(.+?)(?:_(\d+))?$")
_KERNEL_KINDS = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "reduction in one block",
    "tem": "template",
    "for": "foreach",
    "mix": "mixed-order reduction",
    "spl": "split scan",
}
_MAX_WORDS_OF_OPERATOR = 7


def fused_operators(kernel: str, more_operators: Iterable[str] = ()) -> tuple[str, tuple[str, ...]] | None:
    """Return the kind of a kernel that inductor compiled, and the operators it was fused from; None for other kernels.

    Args:
        kernel: Name of the kernel.
        more_operators: Names of operators beside those in ``operators.txt``, such as the trace's own. Words that are
            part of no operator's name stay together.

    >>> fused_operators("triton_per_fused__unsafe_view_add_native_layer_norm_native_layer_norm_backward_view_6")
    ('reduction in one block', ('_unsafe_view', 'add', 'native_layer_norm', 'native_layer_norm_backward', 'view'))
    >>> fused_operators("triton_poi_fused_add_my_own_op_mul_0")
    ('pointwise', ('add', 'my_own_op', 'mul'))
    >>> fused_operators("nvjet_hsh_128x128") is None
    True
    """
    match = _FUSED_KERNEL.match(kernel)
    if match is None:
        return None
    names = _listed_operators() | frozenset(more_operators)
    words = re.findall(r"(?:^|(?<=_))_*[^_]+", match[2])  # an underscore that begins a name stays with its first word
    operators: list[str] = []
    unknown_words: list[str] = []
    start = 0
    while start < len(words):
        length = _longest_operator(words[start:], names)
        if not length:
            unknown_words.append(words[start])
            start += 1
            continue
        if unknown_words:
            operators.append("_".join(unknown_words))
            unknown_words = []
        operators.append("_".join(words[start : start + length]))
        start += length
    if unknown_words:
        operators.append("_".join(unknown_words))
    return _KERNEL_KINDS[match[1]], tuple(operators)


@cache
def _listed_operators() -> frozenset[str]:
    """Read the operators that occur in fused kernels; each may also occur with ``_backward`` behind it."""
    return frozenset(Path(__file__).with_name("operators.txt").read_text(encoding="utf-8").split())


def _longest_operator(words: list[str], names: frozenset[str]) -> int:
    """Return how many of the first *words* form the longest name of an operator; 0 if none does."""
    for count in range(min(_MAX_WORDS_OF_OPERATOR, len(words)), 0, -1):
        name = "_".join(words[:count])
        if name in names or (count > 1 and name.endswith("_backward") and name.removesuffix("_backward") in names):
            return count
    return 0


_INSTANCE_NUMBER = re.compile(r"_\d+$")
_MODULES_WITH_PRODUCTS = ("mlp", "head")
"""Modules that the product next to their own kernels belongs to."""


def find_modules(evidence: Evidence, decisions: Decisions, book: RuleBook) -> tuple[CategoryColumn, CategoryColumn]:
    """Return the module of every compute event, and the evidence for it."""
    size, builtin = len(evidence), builtin_rules()
    has_module = evidence.text("class").any_of("compute") & ~decisions.label.any_of("optimizer")
    rows = np.flatnonzero(has_module)
    # Kernels that copy operands inside a product's operator are no products.
    multiplies = evidence.text("op").matches(MATMUL_OPS) | evidence.text("name").matches(MATMUL_KERNELS)
    is_gemm = np.asarray(evidence.columns["gemm"]).astype(np.bool_) & has_module & multiplies
    is_forward = decisions.label.any_of("forward") & has_module

    def matching(kinds: Sequence[NamedKind], among: Ints = rows) -> CategoryColumn:
        return match_kinds(evidence.columns, kinds, among, size)

    by_rule = decisions.module.where(has_module)
    own_rules = {rule.name for rule in book.rules} - {rule.name for rule in builtin.rules}
    modules = FirstEvidence.empty(size)
    modules.fill("rule", by_rule.where(decisions.rule.any_of(*own_rules)))
    modules.fill("rule", matching([kind for kind in book.modules if kind not in builtin.modules]))
    call_kinds = [kind for kind in builtin.modules if set(kind.when) == {"modules"}]
    modules.fill(BY_MODULE_STACK, _modules_of_calls(evidence.text("modules"), call_kinds).where(has_module))
    modules.fill(BY_NAME, matching([kind for kind in builtin.modules if set(kind.when) == {"annotation"}]))
    name_kinds = [kind for kind in builtin.modules if set(kind.when) & {"chain", "name"}]
    fused = _modules_of_fused_operators(evidence.text("name"), name_kinds)
    modules.fill("fused operators", fused.where(has_module))
    is_fused = evidence.text("name").map(lambda name: fused_operators(name) is not None)
    by_name = by_rule.fill(matching(name_kinds, rows[~is_fused[rows]]))
    # A layer that normalizes and multiplies in one function has both names. Its products are no norm.
    modules.fill("name", by_name.where(~(is_gemm & by_name.any_of("norm"))))
    modules.fill("neighbour", _next_to(evidence, modules.value, is_forward, is_gemm, ("router",)))
    products = Products.find(evidence, is_gemm)
    modules.fill("shapes", products.modules_by_repetition(evidence, modules.value, is_forward))
    modules.fill("neighbour", _next_to(evidence, modules.value, is_forward, is_gemm, _MODULES_WITH_PRODUCTS))
    inherited = _modules_of_forward(evidence, modules.value, is_forward).where(has_module)
    modules.fill("forward", inherited.where(~(is_gemm & inherited.any_of("norm"))))
    modules.fill("forward", products.modules_of_equal_shapes(modules.value, is_forward))
    return modules.value, modules.evidence


def _modules_of_calls(path: CategoryColumn, kinds: Sequence[NamedKind]) -> CategoryColumn:
    """Return the module of the innermost call on each path whose class tells."""
    calls = [[_INSTANCE_NUMBER.sub("", name) for name in text.split(PATH_SEPARATOR)] for text in path.values]
    classes = tuple({name: None for names in calls for name in names})
    column = CategoryColumn(classes, np.arange(len(classes)))
    kind = match_kinds({"modules": column}, kinds, np.arange(len(classes)), len(classes)).strings()
    module_of_class = dict(zip(classes, kind, strict=True))
    modules = ((module_of_class[name] for name in reversed(names)) for names in calls)
    return path.replace([next(filter(None, of_path), None) for of_path in modules])


def _modules_of_fused_operators(kernel: CategoryColumn, kinds: Sequence[NamedKind]) -> CategoryColumn:
    """Return the module of kernels that inductor fused, if all their operators that tell agree."""
    fused = [fused_operators(name) for name in kernel.values]
    operators = tuple({name: None for fusion in fused if fusion for name in fusion[1]})
    rows = np.arange(len(operators))
    columns = {"chain": CategoryColumn(tuple(f"aten::{name}" for name in operators), rows)}
    chain_kinds = [kind for kind in kinds if set(kind.when) == {"chain"}]
    module_of = dict(zip(operators, match_kinds(columns, chain_kinds, rows, len(rows)).strings(), strict=True))
    modules = [{module_of[name] for name in fusion[1]} - {None} if fusion else set() for fusion in fused]
    return kernel.replace([next(iter(of_kernel)) if len(of_kernel) == 1 else None for of_kernel in modules])


def _next_to(
    evidence: Evidence, module: CategoryColumn, is_forward: Bools, is_gemm: Bools, wanted: tuple[str, ...]
) -> CategoryColumn:
    """Return for forward products without a module that of the events around them, if it is one of those *wanted*.

    Neighbours are forward events of the same thread in launch order, with no other product between. A router follows
    its product; where both neighbours have one of the wanted modules, they must agree.
    """
    rows = evidence.launches.by_thread(evidence.launches.ordered(is_forward))
    codes, is_product, thread = module.codes[rows], is_gemm[rows], evidence.launches.thread[rows]
    # The nearest row with a module, or product, strictly before and after each row; the appended -1 stands for none.
    tells = is_product | (codes >= 0)
    before = np.append(-1, nearest_at_or_before(tells))[:-1]
    after = np.append(nearest_at_or_after(tells), -1)[1:]
    is_wanted = np.append(module.answers(wanted)[codes] & ~is_product, False)

    def neighbour_codes(neighbour: Ints) -> Ints:
        same_thread = np.append(thread, -1)[neighbour] == thread
        return np.where(is_wanted[neighbour] & same_thread, np.append(codes, -1)[neighbour], -1)

    following, previous = neighbour_codes(after), neighbour_codes(before)
    if wanted == ("router",):
        previous = following
    agree = (previous == following) | (previous < 0) | (following < 0)
    is_open = is_product & (codes < 0) & agree
    return CategoryColumn(module.values, np.where(is_open, np.maximum(previous, following), -1)).spread(
        rows, len(module)
    )


def _modules_of_forward(evidence: Evidence, module: CategoryColumn, is_forward: Bools) -> CategoryColumn:
    """Return for backward events the module of the forward with their sequence number, if that has only one module."""
    sequence = evidence.autograd.sequence
    forward = np.flatnonzero(is_forward & (sequence >= 0) & module.present)
    if not len(forward):
        return CategoryColumn.constant(None, len(evidence))
    numbers, index = np.unique(sequence[forward], return_inverse=True)
    agreed = np.append(agreed_values(index, module.codes[forward], len(numbers)), -1)  # last: number without forward
    # Forward work that runs again has the number of the node that runs it, which may be of another module.
    is_rerun = evidence.autograd.site.any_of("recompute")
    backward = np.flatnonzero(~is_forward & ~is_rerun & (sequence >= 0))
    codes = agreed[find_sorted(sequence[backward], numbers)]
    return CategoryColumn(module.values, codes).spread(backward, len(evidence))
