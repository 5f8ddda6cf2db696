"""Part of the model that an event belongs to: attention, mlp, norm and so on.

Null where nothing tells.

Evidence is tried in this order: calls of ``nn.Module`` around the launch; annotations; names of
operators, of those that inductor fused, and of kernels; the shapes of products, which repeat from
layer to layer (``Stretch``); the one product between two events of a known module; the shape of an
attention's scores, which other kernels scale, mask and copy. A backward event belongs to the module
of its forward.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from math import prod
from pathlib import Path

import numpy as np

from tracekit._util.arrays import Bools, Ints, SortedGroups, find_sorted, group_rows
from tracekit._util.categories import CategoryColumn
from tracekit._util.shapes import is_shape, parse_list
from tracekit.classify.evidence import EventEvidence
from tracekit.classify.matmul import MATMUL_KERNELS
from tracekit.classify.model_position import BY_MODULE_STACK, BY_NAME
from tracekit.classify.names import FUSED_KERNEL_KINDS, KERNELS, OPERATORS
from tracekit.classify.product_shapes import Dims
from tracekit.classify.row_order import FirstEvidence, agreed_values, nearest_rows
from tracekit.classify.rules import Decisions, NamedKind, RuleBook, builtin_rules, match_kinds
from tracekit.schema import PATH_SEPARATOR

Width = tuple[int, int]
"""Inner size and columns of a product: width of its input and of its output; zeros where
unknown."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """Products that a forward launches between two attentions."""

    widths: tuple[Width, ...]
    after_attention: bool
    before_attention: bool
    has_activation: bool
    """An activation such as GELU runs among them."""

    @property
    def feed_forward_end(self) -> int:
        """Index behind the last product of the feed-forward part; 0 if none is proven."""
        if not self.after_attention or not self.widths:
            return 0
        hidden = self.widths[0][1]
        for i in range(len(self.widths) - 1, 0, -1):
            inner, columns = self.widths[i]
            leads_to = {(hidden, inner), (hidden, 2 * inner)} & set(self.widths[1:i])
            # Low-rank adapters lead to a smaller width and back, without an activation.
            if columns == hidden != inner and leads_to and (inner > hidden or self.has_activation):
                return i + 1
        return 0

    def modules(self, projections: tuple[Width, ...]) -> list[str | None]:
        """Return the module of each product.

        *projections* are those before the attention of most layers.
        """
        count = len(self.widths)
        end = self.feed_forward_end
        modules: list[str | None] = ["mlp"] * end + [None] * (count - end)
        if self.after_attention and count:
            modules[0] = "attention"
        if self.before_attention and count > max(end, self.after_attention):
            last_widths = self.widths[max(end, count - len(projections)) :]
            has_usual_projections = bool(projections) and last_widths == projections
            projection_count = len(projections) if has_usual_projections else 1
            modules[-projection_count:] = ["attention"] * projection_count
        if end:
            self._mark_head(modules, end)
        return modules

    def _mark_head(self, modules: list[str | None], end: int) -> None:
        """Mark the products behind the feed-forward part as the head's, if they read the residual stream."""
        hidden = self.widths[0][1]
        open_products = [i for i in range(end, len(modules)) if modules[i] is None]
        if not open_products:
            return
        first_inner, _ = self.widths[open_products[0]]
        if first_inner == hidden:
            for i in open_products:
                modules[i] = "head"


def usual_projections(stretches: Iterable[Stretch]) -> tuple[Width, ...]:
    """Return the widths of the products right before attention that most layers have.

    Empty if none is proven.
    """
    counts: Counter[tuple[Width, ...]] = Counter()
    for stretch in stretches:
        if stretch.before_attention and stretch.feed_forward_end:
            counts[stretch.widths[stretch.feed_forward_end :]] += 1
    if not counts:
        return ()
    most_common, _ = counts.most_common(1)[0]
    return most_common


@dataclass(frozen=True, eq=False)
class Products:
    """Matrix products in order of thread and launch, one row per kernel."""

    rows: Ints
    call: Ints
    """Row of the operator among the host ranges; -1 without one."""
    size: Dims

    @classmethod
    def find(cls, evidence: EventEvidence, is_gemm: Bools) -> Products:
        """Return the products among the events of *is_gemm*."""
        rows = evidence.launches.by_thread(evidence.launches.ordered(is_gemm))
        call = evidence.ranges.op_around(evidence.launches.op[rows], OPERATORS["product"])
        return cls(rows, call, Dims.of(evidence.ranges, call))

    def modules_of_equal_shapes(self, module: CategoryColumn, is_forward: Bools) -> CategoryColumn:
        """Return for products the module of the forward products with the same three sizes, if all have the same.

        A gradient has the sizes of its forward in another order.
        """
        sizes = np.sort(np.stack(self.size, axis=1), axis=1)
        key, first = group_rows(*sizes.T)
        forward = is_forward[self.rows] & self.size.known
        # A forward product without a module disagrees with all modules: it gets a code of its own.
        code = np.where(module.present, module.codes, len(module.values))[self.rows]
        agreed = agreed_values(key[forward], code[forward], len(first))
        agreed = np.where(self.size.known & (agreed[key] < len(module.values)), agreed[key], -1)
        return CategoryColumn(module.values, agreed).spread(self.rows, len(module))

    def modules_by_repetition(
        self, evidence: EventEvidence, module: CategoryColumn, is_forward: Bools
    ) -> CategoryColumn:
        """Return the modules of forward products by the widths between two attentions."""
        is_attention = _is_attention(evidence, self.rows, is_forward)
        neighbourhoods = _Neighbourhoods.find(
            evidence, is_attention, module.any_of("mlp"), is_forward
        )
        # One product per operator call: helper kernels share it with the product.
        kernels = np.flatnonzero((neighbourhoods.number[self.rows] >= 0) & ~is_attention[self.rows])
        begins_call = (self.call[kernels] < 0) | (np.diff(self.call[kernels], prepend=-2) != 0)
        products = kernels[begins_call]
        stretches = self._stretches(products, neighbourhoods)
        projections = usual_projections(stretches)
        codes: list[int] = []
        for stretch in stretches:
            for name in stretch.modules(projections):
                codes.append(-1 if name is None else _MODULES.index(name))
        product_of_kernel = np.cumsum(begins_call) - 1
        kernel_codes = np.array(codes, np.int64)[product_of_kernel]
        by_widths = CategoryColumn(_MODULES, kernel_codes).spread(self.rows[kernels], len(module))
        return CategoryColumn.choose(len(module), [("attention", is_attention)]).fill(by_widths)

    def _stretches(self, products: Ints, neighbourhoods: _Neighbourhoods) -> list[Stretch]:
        """Return the *products*, which are in launch order, as stretches between two attentions."""
        widths = list(
            zip(
                self.size.inner[products].tolist(),
                self.size.columns[products].tolist(),
                strict=True,
            )
        )
        number = neighbourhoods.number[self.rows[products]]
        stretches = []
        for begin, end in pairwise(SortedGroups.of(number).edges):
            stretch = Stretch(
                tuple(widths[begin:end]),
                after_attention=bool(neighbourhoods.after_attention[number[begin]]),
                before_attention=bool(neighbourhoods.before_attention[number[begin]]),
                has_activation=bool(neighbourhoods.has_activation[number[begin]]),
            )
            stretches.append(stretch)
        return stretches


@dataclass(frozen=True, eq=False)
class _Neighbourhoods:
    """Stretches of a thread's forward events: one begins at each attention, and where another thread begins."""

    number: Ints
    """Of each event: the number of its stretch; -1 if it is no forward event whose launch is
    known."""
    after_attention: Bools
    """Of each stretch: whether it begins with attention."""
    before_attention: Bools
    """Of each stretch: whether the next one on its thread begins with attention."""
    has_activation: Bools

    @classmethod
    def find(
        cls, evidence: EventEvidence, is_attention: Bools, is_activation: Bools, is_forward: Bools
    ) -> _Neighbourhoods:
        """Divide the forward events."""
        events = evidence.launches.by_thread(evidence.launches.ordered(is_forward))
        thread = evidence.launches.thread[events]
        begins_thread = np.append(True, np.diff(thread) != 0)[: len(events)]
        begins_stretch = is_attention[events] | begins_thread
        number = np.full(len(is_forward), -1, np.int64)
        number[events] = np.cumsum(begins_stretch) - 1
        first = events[np.flatnonzero(begins_stretch)]
        after_attention = is_attention[first]
        is_next_on_thread = np.append(np.diff(evidence.launches.thread[first]) == 0, False)[
            : len(first)
        ]
        next_is_attention = np.append(after_attention[1:], False)[: len(first)]
        activations = np.bincount(number[events], is_activation[events], len(first))
        return cls(number, after_attention, next_is_attention & is_next_on_thread, activations > 0)


_MODULES = ("attention", "mlp", "head")


def _is_attention(evidence: EventEvidence, products: Ints, is_forward: Bools) -> Bools:
    """Return the mask of attention itself: kernels and operators of that name, or two products around a softmax."""
    op = evidence.text("op")
    attention = KERNELS["attention"]
    is_attention: Bools = evidence.text("name").matches(attention) | evidence.text("chain").matches(
        attention
    )
    is_attention &= is_forward
    is_softmax = op.matches(OPERATORS["softmax"]) & is_forward
    if is_softmax.any():
        is_product = np.zeros(len(is_forward), np.bool_)
        is_product[products] = True
        rows = evidence.launches.by_thread(
            evidence.launches.ordered(is_forward & (is_product | is_softmax))
        )
        batched = np.append((op.matches(OPERATORS["batched_product"]) & is_product)[rows], False)
        middle = np.flatnonzero(is_softmax[rows])
        middle = middle[batched[middle - 1] & batched[middle + 1]]
        is_attention[rows[np.concatenate([middle - 1, middle, middle + 1])]] = True
    return is_attention


MIN_SCORES = 32
"""Queries and keys from which a tensor of tokens × tokens is told from one of a few flags."""


def _passes_scores(evidence: EventEvidence, module: CategoryColumn) -> Bools:
    """Return the mask of events whose operator reads a tensor of the shape of an attention's scores.

    The scores are what the softmax of written-out attention is taken of: heads × queries × keys.
    """
    shapes = evidence.ranges.text("shapes", evidence.launches.op)
    is_softmax = evidence.text("op").matches(OPERATORS["softmax"])
    of_softmax = set(shapes.where(is_softmax & module.any_of("attention")).strings())
    scores = set(chain.from_iterable(_score_sizes(text) for text in of_softmax if text))
    return shapes.map(lambda text: not scores.isdisjoint(_score_sizes(text)))


def _score_sizes(shapes: str) -> list[tuple[int, int, int]]:
    """Return heads, queries and keys of the inputs that have the shape of scores.

    Queries and keys are in order of their size: a gradient may be transposed.

    >>> _score_sizes("[[8,12,64,64],[8,12,64,32],[],[64,64]]")
    [(96, 64, 64), (96, 32, 64)]
    """
    tensors = [shape for shape in parse_list(shapes) if is_shape(shape)]
    sizes = []
    for shape in tensors:
        if len(shape) > 2 and min(shape[-2:]) >= MIN_SCORES:
            smaller, larger = sorted(shape[-2:])
            sizes.append((prod(shape[:-2]), smaller, larger))
    return sizes


_FUSED_KERNEL = re.compile(r"^triton_(poi|red|per|tem|for|mix|spl)_fused_(.+?)(?:_(\d+))?$")


def fused_operators(
    kernel: str, more_operators: Iterable[str] = ()
) -> tuple[str, tuple[str, ...]] | None:
    """Return the kind of a kernel that inductor compiled, and the operators it was fused from.

    None for other kernels.

    Args:
        kernel: Name of the kernel.
        more_operators: Names of operators beside those in ``operators.txt``, such as the trace's
            own. Words that are part of no operator's name stay together.

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
    # The names of operators, and the stretches between them, each with the underscore before it.
    parts = _operator_names(frozenset(more_operators)).split(f"_{match[2]}")
    return FUSED_KERNEL_KINDS[match[1]], tuple(part[1:] for part in parts if part)


@cache
def _operator_names(more_operators: frozenset[str]) -> re.Pattern[str]:
    """Return the expression for the name of an operator and the underscore before it.

    The longest name counts.

    Each operator in ``operators.txt`` may also occur with ``_backward`` behind it.
    """
    listed = Path(__file__).with_name("operators.txt").read_text(encoding="utf-8").split()
    names = sorted({*listed, *more_operators}, key=len, reverse=True)
    return re.compile(rf"((?<!_)_(?:{'|'.join(map(re.escape, names))})(?:_backward)?(?=_|$))")


_INSTANCE_NUMBER = re.compile(r"_\d+$")
_MODULES_WITH_PRODUCTS = ("mlp", "head")
"""Modules that the product next to their own kernels belongs to."""


def find_modules(evidence: EventEvidence, decisions: Decisions, book: RuleBook) -> FirstEvidence:
    """Return the module of every compute event, and the evidence for it."""
    size = len(evidence)
    builtin = builtin_rules()
    has_module = evidence.text("class").any_of("compute") & ~decisions.label.any_of("optimizer")
    rows = np.flatnonzero(has_module)
    # Kernels that copy operands inside a product's operator are no products.
    multiplies = evidence.text("op").matches(OPERATORS["product"]) | evidence.text("name").matches(
        MATMUL_KERNELS
    )
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
    modules.fill(
        BY_MODULE_STACK, _modules_of_calls(evidence.text("modules"), call_kinds).where(has_module)
    )
    modules.fill(
        BY_NAME, matching([kind for kind in builtin.modules if set(kind.when) == {"annotation"}])
    )
    name_kinds = [kind for kind in builtin.modules if set(kind.when) & {"chain", "name"}]
    fused = _modules_of_fused_operators(evidence.text("name"), name_kinds)
    modules.fill("fused operators", fused.where(has_module))
    is_fused = evidence.text("name").map(lambda name: fused_operators(name) is not None)
    by_name = by_rule.fill(matching(name_kinds, rows[~is_fused[rows]]))
    by_name = by_name.where(~_activates_something_else(evidence, has_module, is_gemm))
    # A layer that normalizes and multiplies in one function has both names. Its products are no
    # norm.
    modules.fill("name", by_name.where(~(is_gemm & by_name.any_of("norm"))))
    modules.fill("neighbour", _next_to(evidence, modules.value, is_forward, is_gemm, ("router",)))
    products = Products.find(evidence, is_gemm)
    modules.fill("shapes", products.modules_by_repetition(evidence, modules.value, is_forward))
    modules.fill(
        "neighbour", _next_to(evidence, modules.value, is_forward, is_gemm, _MODULES_WITH_PRODUCTS)
    )
    passes_scores = _passes_scores(evidence, modules.value) & has_module & ~is_gemm
    modules.fill("shapes", CategoryColumn.choose(size, [("attention", passes_scores)]))
    inherited = _modules_of_forward(evidence, modules.value, is_forward).where(has_module)
    modules.fill("forward", inherited.where(~(is_gemm & inherited.any_of("norm"))))
    modules.fill("forward", products.modules_of_equal_shapes(modules.value, is_forward))
    return modules


MAX_LAUNCHES_TO_PRODUCT = 4
"""Launches from an activation to the products before and behind it in a feed-forward part: a bias, a
product with the gate, a dropout and a cast may lie between."""


def _activates_something_else(evidence: EventEvidence, has_module: Bools, is_gemm: Bools) -> Bools:
    """Return the mask of activations (GELU, SiLU) that do not lie between two products of a feed-forward part.

    Convolutions, embeddings of time steps and norms have them as well.
    """
    op = evidence.text("op")
    is_named = evidence.text("name").matches(KERNELS["activation"])
    is_activation = op.matches(OPERATORS["activation"]) | (is_named & ~op.present)
    is_activation &= has_module
    rows = evidence.launches.by_thread(evidence.launches.ordered(has_module))
    if not is_activation.any() or not len(rows):
        return is_activation
    before, after = nearest_rows(is_gemm[rows])
    at = np.arange(len(rows))
    thread = evidence.launches.thread[rows]
    is_between = (before >= 0) & (after >= 0)
    before = np.where(is_between, before, 0)
    after = np.where(is_between, after, 0)
    is_between &= (at - before <= MAX_LAUNCHES_TO_PRODUCT) & (after - at <= MAX_LAUNCHES_TO_PRODUCT)
    is_between &= (thread[before] == thread) & (thread[after] == thread)
    is_activation[rows[is_between]] = False
    return is_activation


def _modules_of_calls(path: CategoryColumn, kinds: Sequence[NamedKind]) -> CategoryColumn:
    """Return the module of the innermost call on each path whose class tells."""
    classes_on_path: list[list[str]] = []
    for text in path.values:
        classes = [_INSTANCE_NUMBER.sub("", name) for name in text.split(PATH_SEPARATOR)]
        classes_on_path.append(classes)
    module_of_class = _match_texts(chain.from_iterable(classes_on_path), "modules", kinds)
    modules: list[str | None] = []
    for classes in classes_on_path:
        telling = [module for name in classes if (module := module_of_class[name]) is not None]
        modules.append(telling[-1] if telling else None)
    return path.replace(modules)


def _modules_of_fused_operators(
    kernel: CategoryColumn, kinds: Sequence[NamedKind]
) -> CategoryColumn:
    """Return the module of kernels that inductor fused, if all their operators that tell agree."""
    operators_of_kernel: list[list[str]] = []
    for name in kernel.values:
        fused = fused_operators(name)
        operators = fused[1] if fused is not None else ()
        operators_of_kernel.append([f"aten::{operator}" for operator in operators])
    chain_kinds = [kind for kind in kinds if set(kind.when) == {"chain"}]
    module_of_operator = _match_texts(
        chain.from_iterable(operators_of_kernel), "chain", chain_kinds
    )
    modules: list[str | None] = []
    for operators_with_prefix in operators_of_kernel:
        named = {module_of_operator[operator] for operator in operators_with_prefix} - {None}
        modules.append(named.pop() if len(named) == 1 else None)
    return kernel.replace(modules)


def _match_texts(
    texts: Iterable[str], column: str, kinds: Sequence[NamedKind]
) -> dict[str, str | None]:
    """Return the kind of each distinct text, taken as a value of *column*."""
    distinct = tuple(dict.fromkeys(texts))
    rows = np.arange(len(distinct))
    matched = match_kinds({column: CategoryColumn(distinct, rows)}, kinds, rows, len(rows))
    return dict(zip(distinct, matched.strings(), strict=True))


def _next_to(
    evidence: EventEvidence,
    module: CategoryColumn,
    is_forward: Bools,
    is_gemm: Bools,
    wanted: tuple[str, ...],
) -> CategoryColumn:
    """Return for forward products without a module that of the events around them, if it is one of those *wanted*.

    Neighbours are forward events of the same thread in launch order, with no other product between.
    A router follows its product; where both neighbours have one of the wanted modules, they must
    agree.
    """
    rows = evidence.launches.by_thread(evidence.launches.ordered(is_forward))
    codes = module.codes[rows]
    is_product = is_gemm[rows]
    thread = evidence.launches.thread[rows]
    # The nearest row with a module, or product, strictly before and after each row; the appended -1
    # stands for none.
    tells = is_product | (codes >= 0)
    before, after = nearest_rows(tells)
    before = np.append(-1, before)[:-1]
    after = np.append(after, -1)[1:]
    is_wanted = np.append(module.answers(wanted)[codes] & ~is_product, False)

    def neighbour_codes(neighbour: Ints) -> Ints:
        same_thread = np.append(thread, -1)[neighbour] == thread
        return np.where(is_wanted[neighbour] & same_thread, np.append(codes, -1)[neighbour], -1)

    following = neighbour_codes(after)
    previous = neighbour_codes(before)
    if wanted == ("router",):
        previous = following
    agree = (previous == following) | (previous < 0) | (following < 0)
    is_open = is_product & (codes < 0) & agree
    return CategoryColumn(
        module.values, np.where(is_open, np.maximum(previous, following), -1)
    ).spread(rows, len(module))


def _modules_of_forward(
    evidence: EventEvidence, module: CategoryColumn, is_forward: Bools
) -> CategoryColumn:
    """Return for backward events the module of the forward with their sequence number, if that has only one module."""
    sequence = evidence.autograd.sequence
    forward = np.flatnonzero(is_forward & (sequence >= 0) & module.present)
    numbers, index = np.unique(sequence[forward], return_inverse=True)
    # Last: number without forward.
    agreed = np.append(agreed_values(index, module.codes[forward], len(numbers)), -1)
    # Forward work that runs again has the number of the node that runs it, which may be of another
    # module.
    is_rerun = evidence.autograd.site.any_of("recompute")
    backward = np.flatnonzero(~is_forward & ~is_rerun & (sequence >= 0))
    codes = agreed[find_sorted(sequence[backward], numbers)]
    return CategoryColumn(module.values, codes).spread(backward, len(evidence))
