"""Checks of the source text: ``python ci/lint_source.py`` (``make lint``) prints what is wrong and exits with 1.

Every module of the package is parsed once. A check is a generator that yields lines such as
``metrics/budget.py:12: …``. Nothing is imported from the package.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tracekit"
LISTED_NAMES = Path(__file__).parent / "names_used_twice.toml"


class Module:
    """One parsed module."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.tree = ast.parse(source)

    @cached_property
    def nodes_by_type(self) -> dict[type[ast.AST], list[ast.AST]]:
        """Every node of the syntax tree: most checks look at a small part of them."""
        nodes = defaultdict(list)
        for node in ast.walk(self.tree):
            nodes[type(node)].append(node)
        return nodes

    def nodes(self, *types: type[ast.AST]) -> Iterator[ast.AST]:
        """Yield the nodes of some types."""
        for node_type in types:
            yield from self.nodes_by_type.get(node_type, ())

    @property
    def name(self) -> str:
        """Dotted name without ``tracekit``."""
        parts = Path(self.path).with_suffix("").parts
        return ".".join(word for word in parts if word != "__init__")


def read_package() -> list[Module]:
    """Parse every module of the package."""
    return [
        Module(file.relative_to(PACKAGE).as_posix(), file.read_text(encoding="utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
    ]


# One name, one meaning ---------------------------------------------------------------------------


def names_used_twice(modules: list[Module]) -> Iterator[str]:
    """Class names defined twice, and constants with two values but for a list that only shrinks."""
    listed = tomllib.loads(LISTED_NAMES.read_text(encoding="utf-8"))
    homes = defaultdict(list)
    values = defaultdict(set)
    for module in modules:
        for node in module.nodes(ast.ClassDef):
            if isinstance(node, ast.ClassDef):
                # A leading underscore makes no other name of it.
                homes[node.name.lstrip("_")].append(module.path)
        for node in module.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and target.id.isupper():
                        values[target.id.lstrip("_")].add(ast.unparse(node.value))
    exceptions = set(listed["constants"])
    for uses, allowed in ((homes, set()), (values, exceptions)):
        for name, places in sorted(uses.items()):
            if len(places) > 1 and name not in allowed:
                where = ", ".join(sorted(places))
                yield f"{name}: stands for something else already ({where}): choose a name that says what it holds"
    yield from exceptions_to_delete(exceptions, values, most=listed["most_constants"])


def exceptions_to_delete(
    exceptions: set[str], values: dict[str, set[str]], *, most: int
) -> Iterator[str]:
    """Listed constants that have one value, and a list that grew."""
    for name in sorted(exceptions):
        if len(values[name]) < 2:
            yield f"{name}: no longer used twice: delete it from {LISTED_NAMES.relative_to(ROOT)}"
    if len(exceptions) > most:
        yield f"{LISTED_NAMES.relative_to(ROOT)}: the list of constants may only shrink"


# Docstrings --------------------------------------------------------------------------------------

REFERENCE = re.compile(r"``(?:tracekit\.)?([a-z_]\w*(?:\.\w+)+)``")
"""A dotted name in a docstring, such as ``metrics.budget.Budget``."""
DATA_FILES = {"toml", "txt", "json", "zip", "py"}


def module_docstrings(modules: list[Module]) -> Iterator[str]:
    """Docstrings of modules that are questions instead of noun phrases."""
    for module in modules:
        if (ast.get_docstring(module.tree) or "").startswith("What "):
            yield f"{module.path}:1: begin the module's docstring with a noun phrase"


def references_in_docstrings(modules: list[Module]) -> Iterator[str]:
    """Dotted names in docstrings that are neither a module nor a name in one."""
    listed = set(tomllib.loads(LISTED_NAMES.read_text(encoding="utf-8"))["examples"])
    names_by_ending: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        parts = module.name.split(".")
        names = bound_names(module)
        for i in range(len(parts)):
            names_by_ending[".".join(parts[i:])] |= names
    nowhere = set()
    for module in modules:
        for node in module.nodes(ast.Expr):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    for reference in REFERENCE.findall(text):
                        if not leads_somewhere(reference, names_by_ending):
                            nowhere.add(f"{module.name}: {reference}")
    for reference in sorted(nowhere - listed):
        yield f"{reference}: leads nowhere"
    for reference in sorted(listed - nowhere):
        yield f"{reference}: delete it from {LISTED_NAMES.relative_to(ROOT)}"


def bound_names(module: Module) -> set[str]:
    """Every name that a module defines or imports, those inside its classes and functions included."""
    names = set()
    for node in module.nodes(ast.FunctionDef, ast.ClassDef, ast.Name, ast.ImportFrom):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def leads_somewhere(reference: str, names_by_ending: dict[str, set[str]]) -> bool:
    """Whether a dotted name is a module or a name in one; of other beginnings nothing is known."""
    parts = reference.split(".")
    if reference in names_by_ending or parts[0] not in names_by_ending or parts[-1] in DATA_FILES:
        return True
    longest = max(i for i in range(1, len(parts)) if ".".join(parts[:i]) in names_by_ending)
    return parts[longest] in names_by_ending[".".join(parts[:longest])]


# Private names of other packages -----------------------------------------------------------------

PUBLIC_UNDERSCORES = {
    "_exit": "os._exit is documented; a worker process that must end at once calls it",
    "_asdict": "documented method of named tuples",
    "_fields": "documented attribute of named tuples",
    "_replace": "documented method of named tuples",
    "_fields_": "documented attribute of ctypes structures",
    "_repr_html_": "documented protocol of IPython",
    "_set_group_desc": "PyTorch has no public way to describe a process group that exists; its absence is handled",
    "_dump_nccl_trace": "PyTorch documents it, and has no other name for dumping the flight recorder",
}
"""Names with an underscore that are public all the same, and why."""
ONLY_IN = {"_exit": "_util/workers.py", "_dump_nccl_trace": "record/slow_steps.py"}
"""The one module that may use an allowed name; the others are allowed everywhere."""
OWN_PACKAGES = ("tracekit", "__future__", "cython.cimports.tracekit")
"""The last is Cython's way to name our own declarations."""


def private_names(modules: list[Module]) -> Iterator[str]:
    """Private names of other packages: they may change in any release."""
    own_names = {name for module in modules for name in defined_names(module)}
    for module in modules:
        for use, line in private_uses(module, own_names):
            yield f"{module.path}:{line}: {use} is private to another package"


def private_uses(module: Module, own_names: set[str]) -> Iterator[tuple[str, int]]:
    """Yield each private name that is imported, reached through an import, or defined nowhere in tracekit."""
    foreign = foreign_names(module)
    yield from private_imports(module)
    for node, name, line in attribute_accesses(module):
        is_misplaced = ONLY_IN.get(name, module.path) != module.path
        is_foreign_name = root_name(node) in foreign or name not in own_names
        if is_misplaced or (is_private(name) and is_foreign_name):
            yield f"{ast.unparse(node)}.{name}", line


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore and is not documented."""
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_UNDERSCORES


def is_foreign(module_name: str | None, level: int = 0) -> bool:
    """Whether an import comes from another package."""
    return level == 0 and not any(f"{module_name}.".startswith(f"{own}.") for own in OWN_PACKAGES)


def foreign_names(module: Module) -> set[str]:
    """Names that a module binds by importing from other packages."""
    names = set()
    for node in module.nodes(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.split(".")[0] for a in node.names if is_foreign(a.name)}
        elif isinstance(node, ast.ImportFrom) and is_foreign(node.module, node.level):
            names |= {a.asname or a.name for a in node.names}
    return names


def private_imports(module: Module) -> Iterator[tuple[str, int]]:
    """Yield imported paths with a private part, and their lines."""
    for node in module.nodes(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for path in paths:
            if is_foreign(path) and any(map(is_private, path.split("."))):
                yield path, node.lineno


def root_name(node: ast.expr) -> str | None:
    """Return the name that an expression such as ``name.x(...)[...].y`` begins with."""
    while True:
        match node:
            case ast.Name():
                return node.id
            case ast.Attribute() | ast.Subscript():
                node = node.value
            case ast.Call():
                node = node.func
            case _:
                return None


def attribute_accesses(module: Module) -> Iterator[tuple[ast.expr, str, int]]:
    """Yield object, name and line of each attribute access, ``getattr(x, "name")`` and the like included."""
    for node in module.nodes(ast.Attribute, ast.Call):
        match node:
            case ast.Attribute():
                yield node.value, node.attr, node.lineno
            case ast.Call(
                func=ast.Name("getattr" | "setattr" | "hasattr"),
                args=[subject, ast.Constant(str(name)), *_],
            ):
                yield subject, name, node.lineno


def defined_names(module: Module) -> set[str]:
    """Functions, classes, variables, fields and attributes that a module defines or assigns."""
    names = set()
    for node in module.nodes(
        ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Name, ast.Attribute
    ):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return names


TEST_FRAMES = {"self", "cls"}
"""What holds a test helper's own private names."""
SHARED_PACKAGES = {"_util", "_loops", "_version"}
"""Parts of tracekit that all of it shares: their modules are named with an underscore, not what they hold."""


def private_names_in_tests(_modules: list[Module]) -> Iterator[str]:
    """Private names that a test imports, reaches through another object or replaces."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        module = Module(path, file.read_text(encoding="utf-8"))
        for use, line in private_uses_of_test(module):
            yield f"{path}:{line}: {use} is private: test the behaviour it is part of, or make it public"


def private_uses_of_test(module: Module) -> Iterator[tuple[str, int]]:
    """Yield each private name that a test module uses and does not define, and its line."""
    own_names = defined_names(module)
    for node in module.nodes(ast.ImportFrom):
        if isinstance(node, ast.ImportFrom):
            for name in [*(node.module or "").split("."), *(alias.name for alias in node.names)]:
                if is_private(name) and name not in SHARED_PACKAGES:
                    yield f"{node.module}.{name}", node.lineno
    for subject, name, line in (*attribute_accesses(module), *replaced_attributes(module)):
        is_own = root_name(subject) in TEST_FRAMES or name in own_names
        if is_private(name) and not is_own and name not in SHARED_PACKAGES:
            yield f"{ast.unparse(subject)}.{name}", line


def replaced_attributes(module: Module) -> Iterator[tuple[ast.expr, str, int]]:
    """Yield object, name and line of what ``monkeypatch.setattr`` or ``mock.patch.object`` replaces."""
    for node in module.nodes(ast.Call):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "object" | "delattr"),
                args=[subject, ast.Constant(str(name)), *_],
            ):
                yield subject, name, node.lineno


# Sentences ---------------------------------------------------------------------------------------

READING_METHODS = {
    "split",
    "partition",
    "rpartition",
    "startswith",
    "endswith",
    "find",
    "index",
    "replace",
    "removeprefix",
    "removesuffix",
}
SENTENCES = {"message", "problem", "sentence"}
"""Attributes that hold a sentence."""
METHODS_OF_SENTENCES = {"text", "advice"}
"""Methods that return one: of findings."""


def read_sentences(modules: list[Module]) -> Iterator[str]:
    """Code that reads a sentence of a notice, an error or a finding to decide something."""
    for module in modules:
        for line in reads_of_sentences(module):
            yield f"{module.path}:{line}: reads a sentence that is written for people"


def reads_of_sentences(module: Module) -> Iterator[int]:
    """Yield lines of what compares or takes apart a sentence, or searches it with a regular expression."""

    def is_sentence(node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr=name):
                return name in SENTENCES
            case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]):
                return name in METHODS_OF_SENTENCES
        return False

    for node in module.nodes(ast.Compare, ast.Attribute, ast.Subscript, ast.Call):
        match node:
            case ast.Compare(left=left, comparators=others) if any(
                map(is_sentence, [left, *others])
            ):
                yield node.lineno
            case ast.Attribute(attr=name, value=value) if name in READING_METHODS:
                if is_sentence(value):
                    yield node.lineno
            case ast.Subscript(value=value) if is_sentence(value):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=args) if any(
                map(is_sentence, args)
            ):
                yield node.lineno


def notices_explained(modules: list[Module]) -> Iterator[str]:
    """Codes of notices that docsite/notices.toml does not explain, and codes there without a notice."""
    used = set()
    for module in modules:
        for node in module.nodes(ast.Call):
            match node:
                case ast.Call(func=ast.Name("Notice"), args=[ast.Constant(str(code)), *_]):
                    used.add(code)
    explained = set(
        tomllib.loads((ROOT / "docsite/notices.toml").read_text(encoding="utf-8"))["notice"]
    )
    if len(used) <= 50:
        yield "ci/lint_source.py: finds hardly any notice in the package: are they made differently now?"
    for code in sorted(used - explained):
        yield f"docsite/notices.toml: notice {code} is not explained"
    for code in sorted(explained - used - {"no-shapes"}):  # a finding of the doctor's
        yield f"docsite/notices.toml: there is no notice {code}"


# Errors ------------------------------------------------------------------------------------------

BUILT_IN_ERRORS = {
    "BaseException",
    "Exception",
    "KeyError",
    "LookupError",
    "OSError",
    "RuntimeError",
    "TypeError",
    "ValueError",
}


def errors_of_the_package(modules: list[Module]) -> Iterator[str]:
    """Classes of errors that are no ``TracekitError``."""
    for module in modules:
        for node in module.nodes(ast.ClassDef):
            bases = {ast.unparse(base) for base in node.bases}
            if bases and bases <= BUILT_IN_ERRORS and node.name != "TracekitError":
                yield f"{module.path}:{node.lineno}: {node.name} is no TracekitError"


# Findings ----------------------------------------------------------------------------------------

READERS_OF_FINDINGS = ("report/", "results/", "cli/", "diffs/", "run/", "record/")
"""Packages that show findings, and ask their classes what is true of them (``findings.families.kind_of``)."""
MIN_FINDING_CODES = 30
"""Codes of findings that the package has at least: fewer were found in another way."""


def policy_by_codes(modules: list[Module]) -> Iterator[str]:
    """Collections of codes of findings, and comparisons with a code or a case, where findings are shown."""
    codes = set(finding_codes(modules))
    if len(codes) < MIN_FINDING_CODES:
        yield "ci/lint_source.py: finds hardly any finding in the package: are they made differently now?"
    for module in modules:
        if not module.path.startswith(READERS_OF_FINDINGS):
            continue
        for node in module.nodes(ast.Set, ast.Tuple, ast.List, ast.Dict, ast.Compare):
            match node:
                case ast.Set(elts=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                    names_codes = are_codes(parts, codes)
                case ast.Dict(keys=parts):
                    names_codes = are_codes(parts, codes)
                case ast.Compare(
                    left=ast.Attribute(value=ast.Name("finding"), attr="code" | "case")
                ):
                    names_codes = True
                case _:
                    names_codes = False
            if names_codes:
                yield (
                    f"{module.path}:{node.lineno}: what is true of a kind of findings is an attribute of its class"
                )


def finding_codes(modules: list[Module]) -> Iterator[str]:
    """Yield the codes that classes of findings, and entries of their catalogue, have."""
    for module in modules:
        if not re.match(r"findings/|(memory|roles)/findings|metrics/alternatives/", module.path):
            continue
        for definition in module.nodes(ast.ClassDef):
            for node in definition.body:
                match node:
                    case ast.Assign(targets=[ast.Name("code")], value=ast.Constant(str(code))):
                        yield code


def are_codes(parts: list[ast.expr | None], codes: set[str]) -> bool:
    """Return whether several parts of a collection are all codes of findings, or pairs that begin with one."""
    firsts = [part.elts[0] if isinstance(part, ast.Tuple) and part.elts else part for part in parts]
    return len(parts) > 1 and all(
        isinstance(part, ast.Constant) and part.value in codes for part in firsts
    )


# Constants of predictions ------------------------------------------------------------------------

SOURCE_AND_DATE = re.compile(
    r"(By choice|[Ff]rom |Median of|Set with|a guess|seen).*20\d\d-\d\d-\d\d", re.DOTALL
)
NO_FIGURES = {"Estimate", "LOW, MIDDLE, HIGH"}
"""Names in the file of constants that are no figures."""


def constants_of_predictions(modules: list[Module]) -> Iterator[str]:
    """Figures of what-if outside its one file, and figures there that do not say where they are from."""
    for module in modules:
        if not re.fullmatch(r"graph/\w+\.py", module.path):
            continue
        is_home = module.path == "graph/constants.py"
        for node, following in pairwise([*module.tree.body, ast.Pass()]):
            name = assigned_name(node)
            if is_home and name is not None and name not in NO_FIGURES:
                text = " ".join(ast.unparse(following).replace("\\n", " ").split())
                if not SOURCE_AND_DATE.search(text):
                    yield f"{module.path}:{node.lineno}: {name}: say where it is from, and when it was set"
            elif not is_home and is_figure(node):
                yield f"{module.path}:{node.lineno}: {name} belongs into graph/constants.py"


def assigned_name(node: ast.stmt) -> str | None:
    """Return what a statement assigns to; None if it assigns nothing."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]).strip("()")
    return None


def is_figure(node: ast.stmt) -> bool:
    """Whether a statement assigns a number, or a tuple of numbers."""
    try:
        value = ast.literal_eval(node.value)  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return False
    values = [value]
    while values and isinstance(values[0], tuple):
        values = [number for group in values for number in group]
    return bool(values) and all(isinstance(number, int | float) for number in values)


# How to add --------------------------------------------------------------------------------------


def places_to_add(_modules: list[Module]) -> Iterator[str]:
    """Paths under "How to add" in CONTRIBUTING.md that do not exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    adding = text.partition("## How to add")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:tracekit|docs|docsite|tests)/[\w/.-]+)`", adding)
    if len(named) <= 10:
        yield "CONTRIBUTING.md: names hardly any place under How to add"
    for path in named:
        if not (ROOT / path).exists():
            yield f"CONTRIBUTING.md: there is no {path}"


def nightly_tests(_modules: list[Module]) -> Iterator[str]:
    """Lines of tests/nightly.txt that name no test."""
    for line in (ROOT / "tests/nightly.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        path, _, name = line.partition("::")
        function = name.partition("[")[0].rpartition(".")[2]  # of an example: with its module
        file = ROOT / path
        if not file.is_file() or f"def {function}" not in file.read_text(encoding="utf-8"):
            yield f"tests/nightly.txt: there is no test {line}"


CHECKS = (
    names_used_twice,
    module_docstrings,
    references_in_docstrings,
    private_names,
    private_names_in_tests,
    read_sentences,
    errors_of_the_package,
    policy_by_codes,
    notices_explained,
    constants_of_predictions,
    places_to_add,
    nightly_tests,
)


def main() -> int:
    """Run every check and print what they find."""
    modules = read_package()
    lines = [line for check in CHECKS for line in check(modules)]
    print(*lines, sep="\n", end="\n" * bool(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
