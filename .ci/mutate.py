"""Changes one thing in a module, runs its tests, and prints the changes that no test notices.

With `--faults` the changes are those of faults.toml, each with the test that must fail.
"""

import argparse
import ast
import contextlib
import difflib
import importlib.util
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
NODES = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
NODES |= {ast.And: ast.Or, ast.Add: ast.Sub}
NODES |= {new: old for old, new in NODES.items()}
NAMES = {"min": "max", "minimum": "maximum", "any": "all", "index": "rindex", "floor": "ceil"}
NAMES |= {"float32": "bfloat16", "int32": "int16", "float64": "float32", "int64": "int32"}
NAMES |= {new: old for old, new in NAMES.items() if new not in NAMES} | {"removesuffix": "rstrip"}
IGNORED = (".git", "*venv", "_build*")
CHECKS = (
    "InputError",
    "Rejection",
    "print_lines",
    "strict",
    "stacklevel",
)  # a function, an argument


def swapped(values):
    """Yields the list with two neighbours swapped: expressions, or statements with effects."""
    for i, pair in enumerate(zip(values, values[1:], strict=False)):
        parts = {type(getattr(node, "value", node)) for node in pair}  # A text is a docstring.
        is_simple = set(map(type, pair)) <= {ast.Assign, ast.AugAssign, ast.Expr}
        has_effect = is_simple and ast.Call in parts and ast.Constant not in parts
        if (has_effect or not isinstance(pair[0], ast.stmt)) and len(set(map(ast.dump, pair))) == 2:
            yield [*values[:i], *reversed(pair), *values[i + 2 :]]


def edits(node):
    """Yields fields of a node, each with a value that changes one thing."""
    match node:
        case ast.Compare(ops=[op, *more]):
            yield "ops", [NODES[type(op)](), *more]
        case ast.BoolOp(op=op) | ast.BinOp(op=ast.Add() | ast.Sub() as op):
            yield "op", NODES[type(op)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.Constant(value=int(value)):  # Also a bool.
            new = [not value] if isinstance(value, bool) else [value + 1, value - 1]
            yield from (("value", number) for number in new)
        case ast.Constant(value=x) | ast.Name(id=x) | ast.Attribute(attr=x) if x in NAMES:
            yield "attr" if hasattr(node, "attr") else node._fields[0], NAMES[x]
        case ast.Call(func=function, args=args, keywords=keywords):
            named = [keyword for keyword in keywords if keyword.arg not in CHECKS]
            yield from (("keywords", [k for k in keywords if k is not left]) for left in named)
            orders = [] if getattr(function, "id", 0) in NAMES else list(swapped(args))
            yield from (("args", new) for new in [args[:-1]] * (len(args) > 1) + orders)
        case ast.Tuple(elts=values, ctx=ast.Load()) | ast.List(elts=values, ctx=ast.Load()):
            yield from (("elts", new) for new in swapped(values))
    if isinstance(body := getattr(node, "body", None), list):
        yield from (("body", order) for order in swapped(body))


def changes_of(node, lines=range(0)):
    """Yields every change below a node: the lines of its statement, a node, a field, its value."""
    name = getattr(getattr(node, "func", node), "id", getattr(node, "arg", ""))
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom) or name in CHECKS:
        return
    if isinstance(node, ast.stmt):
        end = node.body[0].lineno if hasattr(node, "body") else node.end_lineno + 1
        lines = range(node.lineno, max(end, node.lineno + 1))
    yield from ((lines, node, *edit) for edit in edits(node))
    for field in sorted({*node._fields} - {"annotation", "returns", "decorator_list", "type"}):
        value = getattr(node, field, None)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from changes_of(child, lines)


def chosen_changes(paths, count, seed):
    """Yields path, lines, new text and difference of changes of different lines."""
    trees, by_line = {path: ast.parse((ROOT / path).read_text("utf-8")) for path in paths}, {}
    for path, change in ((p, change) for p in trees for change in changes_of(trees[p])):
        by_line.setdefault((path, change[0].start), []).append(change)
    rng = random.Random(seed)
    for path, line in sorted(rng.sample(sorted(by_line), min(count, len(by_line)))):
        lines, node, field, value = rng.choice(by_line[path, line])
        before, old = ast.unparse(trees[path]), getattr(node, field)
        setattr(node, field, value)
        after = ast.unparse(trees[path])
        setattr(node, field, old)
        difference = difflib.unified_diff(before.split("\n"), after.split("\n"), n=0, lineterm="")
        yield path, lines, after, "  ".join(list(difference)[3:])


def in_a_fork(log, limit, arguments, first=()):
    """Runs pytest in a fork, the tests `first` before others; returns its exit code."""
    if (pid := os.fork()) == 0:
        os.setsid()
        signal.alarm(8 * limit)  # of a machine with other work, or for a process that waits
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1), os.dup2(1, 2)
        order = lambda items: items.sort(key=lambda item: item.nodeid not in first)  # noqa: E731
        plugin = argparse.Namespace(pytest_collection_modifyitems=order)
        with contextlib.suppress(BaseException):
            os._exit(sys.modules["pytest"].main(["-q", "-x", "--slow", *arguments], [plugin]))
        os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what the tests have started
    results = {0: "SURVIVED", -signal.SIGALRM: "slow", -signal.SIGKILL: "slow"}
    results[5] = "SURVIVED"  # There was no test.
    return results.get(code, "caught")


def copied_tree(folder):
    """Copies the repository, and imports the copy's package and what forks need not import."""
    shutil.copytree(ROOT, tree := folder / "tree", ignore=shutil.ignore_patterns(*IGNORED))
    os.chdir(tree)
    # The copy is before an installed package. Bytecode would hide a change of equal size and time.
    sys.path[0] = os.environ["PYTHONPATH"] = str(tree)
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    assert str(tree) in importlib.util.find_spec("keras_transformer").origin
    # Not the package itself, which is changed.
    for name in "pytest tensorflow keras hypothesis sentencepiece yaml regex".split():
        importlib.import_module(name)
    return tree


def try_faults(paths, limit, folder):
    """Tries the faults of files that are named or whose tests are, or all; 1 if one survives."""
    rows = tomllib.loads((ROOT / ".ci" / "faults.toml").read_text("utf-8"))["fault"]
    if paths:
        rows = [row for row in rows if {row["file"], row["test"].partition("::")[0]} & {*paths}]
    tree, log = copied_tree(folder), folder / "log"
    tests = sorted({test for row in rows for test in row["test"].split()})
    if tests and in_a_fork(log, 3600, tests) != "SURVIVED":
        sys.exit(f"{log.read_text()}\nThe tests fail without a fault.")
    results = []
    for row in rows:
        content = (tree / row["file"]).read_text("utf-8")
        assert content.count(row["old"]) == 1, f"{row['file']}: not once: {row['old']}"
        (tree / row["file"]).write_text(content.replace(row["old"], row["new"]), "utf-8")
        results.append(in_a_fork(log, limit, row["test"].split()))
        (tree / row["file"]).write_text(content, "utf-8")
        print(results[-1], row["file"], row["test"], repr(row["new"]), flush=True)
    return int("SURVIVED" in results)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules to change; files of faults")
    parser.add_argument("--faults", action="store_true", help="the faults of .ci/faults.toml")
    parser.add_argument("--tests", nargs="+", help="default: the folder that mirrors a module")
    for option, number in (("count", 20), ("seed", 0), ("limit", 120)):
        parser.add_argument(f"--{option}", type=int, default=number, help=f"default: {number}")
    options, folder = parser.parse_args(), tempfile.TemporaryDirectory()
    paths = [str(pathlib.Path(path).resolve().relative_to(ROOT)) for path in options.modules]
    if options.faults:
        sys.exit(try_faults(paths, options.limit, pathlib.Path(folder.name)))
    mirrors = (path.replace("keras_transformer/", "tests/").rpartition("/") for path in paths)
    tests = options.tests or sorted({f if "/" in f else f"tests/test_{n}" for f, _, n in mirrors})
    changes = list(chosen_changes(paths, options.count, options.seed))
    tree, log = copied_tree(pathlib.Path(folder.name)), pathlib.Path(folder.name, "log")
    importlib.import_module("coverage")
    coverage = "--cov=keras_transformer --cov-context=test --cov-report=".split()
    if in_a_fork(log, 3600, [*coverage, *tests]) != "SURVIVED":
        sys.exit(f"{log.read_text()}\nThe tests fail without a change.")
    (data := sys.modules["coverage"].CoverageData(".coverage")).read()
    for number, (path, lines, content, difference) in enumerate(changes, 1):
        contexts, original = data.contexts_by_lineno(str(tree / path)), (tree / path).read_bytes()
        reached = {test.split("|")[0] for line in lines for test in contexts.get(line, ()) if test}
        # A constant is read when its module is imported: any test may depend on it.
        files = sorted({test.split("::")[0] for test in reached}) or tests
        (tree / path).write_text(content, "utf-8")
        result = in_a_fork(log, options.limit, files, reached)
        (tree / path).write_bytes(original)
        print(number, result, f"{path}:{lines.start}", difference, flush=True)


if __name__ == "__main__":
    main()
